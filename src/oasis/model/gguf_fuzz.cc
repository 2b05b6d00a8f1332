// Any bytes as a GGUF file, and what is made of its metadata.
#include "oasis/model/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oasis::model;
  auto file = GgufFile::from_bytes({reinterpret_cast<const std::byte*>(data), size});
  if (!file.ok()) return 0;
  (void)config_from_gguf(*file);
  (void)tokenizer_from_gguf(*file);
  for (const auto& [name, tensor] : file->tensors()) {
    OASIS_CHECK(tensor.data.data() >= reinterpret_cast<const std::byte*>(data), "tensor before the file");
    OASIS_CHECK(tensor.data.data() + tensor.data.size() <= reinterpret_cast<const std::byte*>(data) + size,
                "tensor past the file");
  }
  return 0;
}
