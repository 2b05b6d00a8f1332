#include "oasis/base/status.h"
#include "oasis/kernels/embedding/embedding.h"
#include "oasis/kernels/matmul/matmul.h"

namespace oasis::kernels {

void embedding_cpu(Stream& stream, const EmbeddingParams& params) {
  const WeightView& table = params.table;
  const auto* data = static_cast<const std::byte*>(table.data);
  stream.pool().run(params.rows, [&](int64_t row, int) {
    const int32_t id = params.ids[row];
    OASIS_CHECK(id >= 0 && id < table.rows, "token {} is not in a vocabulary of {}", id, table.rows);
    dequantize(table.type, data + id * table.row_bytes(), table.cols, params.out + row * table.cols);
  });
}

}  // namespace oasis::kernels
