// Any bytes as a safetensors file.
#include "oasis/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oasis::model;
  auto file = SafetensorsFile::from_bytes({reinterpret_cast<const std::byte*>(data), size});
  if (!file.ok()) return 0;
  for (const auto& [name, tensor] : file->tensors()) {
    OASIS_CHECK(tensor.data.data() + tensor.data.size() <= reinterpret_cast<const std::byte*>(data) + size,
                "tensor past the file");
    (void)to_floats(tensor, name);
    (void)to_int64s(tensor, name);
  }
  return 0;
}
