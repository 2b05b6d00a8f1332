#include "oasis/model/config.h"

#include <algorithm>
#include <array>

namespace oasis::model {

namespace {

Status check_range(std::string_view what, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("{} is {}; this engine takes {} to {}", what, value, low, high);
}

Status check_token(std::string_view what, int32_t id, int64_t vocab) {
  if (id >= 0 && id < vocab) return {};
  return invalid_argument("{} {} is outside the vocabulary of {}", what, id, vocab);
}

}  // namespace

std::string_view to_string(Arch arch) { return arch == Arch::kLlama ? "llama" : "qwen3"; }

Status validate(const ModelConfig& config) {
  OASIS_RETURN_IF_ERROR(check_range("the number of layers", config.layers, 1, 1024));
  OASIS_RETURN_IF_ERROR(check_range("the hidden size", config.hidden, 1, 65536));
  OASIS_RETURN_IF_ERROR(check_range("the number of heads", config.heads, 1, 1024));
  OASIS_RETURN_IF_ERROR(check_range("the number of KV heads", config.kv_heads, 1, config.heads));
  if (config.heads % config.kv_heads != 0)
    return invalid_argument("{} heads are no multiple of {} KV heads", config.heads, config.kv_heads);
  constexpr std::array kHeadDims = {64, 80, 96, 128, 256};
  if (std::ranges::find(kHeadDims, config.head_dim) == kHeadDims.end())
    return unsupported("head_dim is {}; this engine has kernels for 64, 80, 96, 128 and 256", config.head_dim);
  OASIS_RETURN_IF_ERROR(check_range("the intermediate size", config.intermediate, 1, 1 << 20));
  OASIS_RETURN_IF_ERROR(check_range("the vocabulary size", config.vocab, 1, 1 << 24));
  OASIS_RETURN_IF_ERROR(check_range("the context length", config.context, 1, int64_t{1} << 28));
  if (!(config.rms_eps > 0 && config.rms_eps <= 0.1f))
    return invalid_argument("rms_eps is {}; it must be in (0, 0.1]", config.rms_eps);
  if (config.bos_id != -1) OASIS_RETURN_IF_ERROR(check_token("the BOS id", config.bos_id, config.vocab));
  for (int32_t id : config.eos_ids) OASIS_RETURN_IF_ERROR(check_token("the EOS id", id, config.vocab));
  if (config.temperature && !(*config.temperature >= 0 && *config.temperature <= 100))
    return invalid_argument("the default temperature {} is outside [0, 100]", *config.temperature);
  if (config.top_p && !(*config.top_p > 0 && *config.top_p <= 1))
    return invalid_argument("the default top_p {} is outside (0, 1]", *config.top_p);
  if (config.top_k && *config.top_k < 0) return invalid_argument("the default top_k {} is negative", *config.top_k);
  return validate(config.rope, config.head_dim);
}

Status complete(ModelConfig& config, const std::string& source) {
  Status status = validate(config);
  if (status.ok() && config.rope.scaling == RopeScaling::kYarn) {
    const double stretched = static_cast<double>(config.rope.original_context) * config.rope.factor;
    config.context = std::max(config.context, static_cast<int64_t>(stretched));
    status = validate(config);
  }
  return status.ok() ? status : Status(status.code(), fmt::format("'{}': {}", source, status.message()));
}

}  // namespace oasis::model
