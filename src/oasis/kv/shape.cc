#include "oasis/kv/shape.h"

namespace oasis::kv {
namespace {

Status check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("KV shape: {} is {}, must be {} to {}", name, value, low, high);
}

}  // namespace

Status validate(const KvShape& shape) {
  constexpr int64_t kMost = 1 << 14;  // keeps a page below 2^61 bytes
  OASIS_RETURN_IF_ERROR(check_range("first_layer", shape.first_layer, 0, kMost));
  OASIS_RETURN_IF_ERROR(check_range("layers", shape.layers, 1, kMost));
  OASIS_RETURN_IF_ERROR(check_range("first_kv_head", shape.first_kv_head, 0, kMost));
  OASIS_RETURN_IF_ERROR(check_range("kv_heads", shape.kv_heads, 1, kMost));
  OASIS_RETURN_IF_ERROR(check_range("head_dim", shape.head_dim, 1, kMost));
  return check_range("block_size", shape.block_size, 1, kMost);
}

}  // namespace oasis::kv
