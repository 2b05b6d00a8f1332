#include "oasis/draft/eagle3_head.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>

namespace oasis::draft {

namespace {

using model::TensorInfo;

// One name for every tensor: heads are written with or without `model.`, the layer as `midlayer.` or `layers.0.`.
std::string canonical(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  constexpr std::string_view kLayer = "layers.0.";
  if (name.starts_with(kLayer)) return "midlayer." + std::string(name.substr(kLayer.size()));
  return std::string(name);
}

// Tensors that say nothing that inference needs.
bool ignored(std::string_view name) { return name == "t2d" || name.ends_with("rotary_emb.inv_freq"); }

class HeadReader {
 public:
  HeadReader(const std::string& folder, const model::Checkpoint& target) : folder_(folder), target_(target) {}

  Result<Head> read();

 private:
  Status open_files();
  Status read_norms();
  Status read_features();
  Status read_layer();
  Status read_vocabulary();
  Status refuse_others() const;
  uint64_t fingerprint() const;

  const TensorInfo* find(const std::string& name) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return nullptr;
    used_.insert({name, it->second});
    return it->second;
  }
  Result<const TensorInfo*> require(const std::string& name, std::vector<int64_t> shape);
  Result<std::span<const float>> vector(const std::string& name, int64_t length);
  // Empty where the head has no such tensor.
  Result<std::span<const float>> optional_vector(const std::string& name, int64_t length);
  Result<WeightView> matrix(const std::string& name, int64_t rows, int64_t cols);
  Status linear(const std::string& name, int64_t rows, int64_t cols, Linear& out);
  std::byte* own(size_t bytes) {
    head_.owned.emplace_back(bytes);
    return head_.owned.back().data();
  }

  const std::string& folder_;
  const model::Checkpoint& target_;
  Head head_;
  std::map<std::string, const TensorInfo*, std::less<>> tensors_, used_;  // by canonical name
};

Status HeadReader::open_files() {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error))
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  if (error) return not_found("'{}' is not a folder that can be read: {}", folder_, error.message());
  if (paths.empty() && std::filesystem::exists(folder_ + "/pytorch_model.bin", error))
    return unsupported(
        "'{0}' has its weights in pytorch_model.bin only, which is a Python pickle; convert it once: python -c "
        "\"import "
        "torch; from safetensors.torch import save_file; save_file({{k: v.contiguous() for k, v in "
        "torch.load('{0}/pytorch_model.bin', weights_only=True).items()}}, '{0}/model.safetensors')\"",
        folder_);
  if (paths.empty()) return not_found("'{}' has no *.safetensors file; an EAGLE-3 head is a folder with one", folder_);
  std::ranges::sort(paths);
  for (const std::string& path : paths) {
    OASIS_ASSIGN_OR_RETURN(model::SafetensorsFile file, model::SafetensorsFile::open(path));
    head_.files.push_back(std::move(file));
  }
  for (const model::SafetensorsFile& file : head_.files)
    for (const auto& [name, info] : file.tensors()) {
      if (ignored(canonical(name))) continue;
      if (!tensors_.insert({canonical(name), &info}).second)
        return data_corruption("'{}' has tensor '{}' twice", folder_, model::printable(canonical(name)));
    }
  return {};
}

Result<const TensorInfo*> HeadReader::require(const std::string& name, std::vector<int64_t> shape) {
  const TensorInfo* info = find(name);
  if (!info) return not_found("'{}' has no tensor '{}'; it is not a complete EAGLE-3 head", folder_, name);
  if (info->shape != shape)
    return invalid_argument("'{}': tensor '{}' has shape {}, with this target and config.json it must have {}", folder_,
                            name, model::to_string(info->shape), model::to_string(shape));
  return info;
}

Result<std::span<const float>> HeadReader::vector(const std::string& name, int64_t length) {
  OASIS_ASSIGN_OR_RETURN(const TensorInfo* info, require(name, {length}));
  OASIS_ASSIGN_OR_RETURN(auto values, model::to_floats(*info, name));
  return std::span<const float>(head_.owned_floats.emplace_back(std::move(values)));
}

Result<std::span<const float>> HeadReader::optional_vector(const std::string& name, int64_t length) {
  if (!find(name)) return std::span<const float>();
  return vector(name, length);
}

Result<WeightView> HeadReader::matrix(const std::string& name, int64_t rows, int64_t cols) {
  OASIS_ASSIGN_OR_RETURN(const TensorInfo* info, require(name, {rows, cols}));
  if (info->type != DType::kF32 && info->type != DType::kF16 && info->type != DType::kBF16)
    return unsupported("'{}': tensor '{}' has type {}; it must be F32, F16 or BF16", folder_, name,
                       oasis::info(info->type).name);
  head_.weight_bytes += static_cast<int64_t>(info->data.size());
  const std::byte* data = info->data.data();
  if (std::bit_cast<uintptr_t>(data) % oasis::info(info->type).block_bytes != 0) {
    std::byte* copy = own(info->data.size());
    std::memcpy(copy, data, info->data.size());
    data = copy;
  }
  return WeightView{data, info->type, rows, cols};
}

Status HeadReader::linear(const std::string& name, int64_t rows, int64_t cols, Linear& out) {
  OASIS_ASSIGN_OR_RETURN(out.w, matrix(name + ".weight", rows, cols));
  OASIS_ASSIGN_OR_RETURN(out.bias, optional_vector(name + ".bias", rows));
  return {};
}

Status HeadReader::read_norms() {
  const HeadConfig& c = head_.config;
  OASIS_ASSIGN_OR_RETURN(head_.embed_norm, vector("midlayer.input_layernorm.weight", c.hidden));
  OASIS_ASSIGN_OR_RETURN(head_.feature_norm, vector("midlayer.hidden_norm.weight", c.hidden));
  OASIS_ASSIGN_OR_RETURN(head_.mlp_norm, vector("midlayer.post_attention_layernorm.weight", c.hidden));
  OASIS_ASSIGN_OR_RETURN(head_.output_norm, vector("norm.weight", c.hidden));
  OASIS_ASSIGN_OR_RETURN(head_.q_norm, optional_vector("midlayer.self_attn.q_norm.weight", c.head_dim));
  OASIS_ASSIGN_OR_RETURN(head_.k_norm, optional_vector("midlayer.self_attn.k_norm.weight", c.head_dim));
  if (head_.q_norm.empty() != head_.k_norm.empty())
    return data_corruption("'{}' has only one of q_norm and k_norm", folder_);
  return {};
}

// fc.weight [hidden, taps * target_hidden] is cut into one matrix a tap, so that taps can be folded in as they pass.
Status HeadReader::read_features() {
  const HeadConfig& c = head_.config;
  if (c.final_state) {
    if (c.target_hidden != c.hidden)
      return invalid_argument(
          "'{}': use_aux_hidden_state is false, so the head's hidden size {} must be the target's, {}", folder_,
          c.hidden, c.target_hidden);
    head_.final_norm = target_.weights().output_norm;
    head_.target_rms_eps = target_.config().rms_eps;
    find("fc.weight");  // some files hold one all the same
    return {};
  }
  const int64_t taps = static_cast<int64_t>(c.taps.size()), cols = c.target_hidden;
  OASIS_ASSIGN_OR_RETURN(const WeightView fc, matrix("fc.weight", c.hidden, taps * cols));
  const int64_t tap_bytes = bytes_of(fc.type, cols);
  for (int64_t tap = 0; tap < taps; ++tap) {
    std::byte* copy = own(static_cast<size_t>(c.hidden * tap_bytes));
    for (int64_t row = 0; row < c.hidden; ++row)
      std::memcpy(copy + row * tap_bytes,
                  static_cast<const std::byte*>(fc.data) + row * fc.row_bytes() + tap * tap_bytes,
                  static_cast<size_t>(tap_bytes));
    head_.fc.push_back({copy, fc.type, c.hidden, cols});
  }
  OASIS_ASSIGN_OR_RETURN(head_.fc_bias, optional_vector("fc.bias", c.hidden));
  OASIS_ASSIGN_OR_RETURN(head_.concat_norm, optional_vector("input_norm.weight", taps * cols));
  if (!find("fc_norm.0.weight")) return {};
  for (int64_t tap = 0; tap < taps; ++tap) {
    OASIS_ASSIGN_OR_RETURN(auto norm, vector(fmt::format("fc_norm.{}.weight", tap), cols));
    head_.tap_norm.push_back(norm);
  }
  if (!head_.concat_norm.empty())
    return unsupported("'{}' has both input_norm and fc_norm; only one of them is implemented", folder_);
  return {};
}

Status HeadReader::read_layer() {
  const HeadConfig& c = head_.config;
  const int64_t hidden = c.hidden, q_cols = int64_t{c.heads} * c.head_dim, kv_cols = int64_t{c.kv_heads} * c.head_dim;
  const std::string attention = "midlayer.self_attn.", mlp = "midlayer.mlp.";
  OASIS_RETURN_IF_ERROR(linear(attention + "q_proj", q_cols, 2 * hidden, head_.q));
  OASIS_RETURN_IF_ERROR(linear(attention + "k_proj", kv_cols, 2 * hidden, head_.k));
  OASIS_RETURN_IF_ERROR(linear(attention + "v_proj", kv_cols, 2 * hidden, head_.v));
  OASIS_RETURN_IF_ERROR(linear(attention + "o_proj", hidden, q_cols, head_.o));
  OASIS_RETURN_IF_ERROR(linear(mlp + "gate_proj", c.intermediate, hidden, head_.gate));
  OASIS_RETURN_IF_ERROR(linear(mlp + "up_proj", c.intermediate, hidden, head_.up));
  return linear(mlp + "down_proj", hidden, c.intermediate, head_.down);
}

Status HeadReader::read_vocabulary() {
  const HeadConfig& c = head_.config;
  const int64_t vocab = target_.config().vocab;
  if (find("embed_tokens.weight")) {
    OASIS_ASSIGN_OR_RETURN(head_.embed, matrix("embed_tokens.weight", vocab, c.hidden));
  } else {
    head_.embed = target_.weights().embed;
    if (head_.embed.cols != c.hidden)
      return invalid_argument(
          "'{}' has no embed_tokens.weight and the target's embeddings have {} columns, the head {}", folder_,
          head_.embed.cols, c.hidden);
  }
  if (const TensorInfo* info = find("lm_head.weight")) {
    const int64_t rows = info->shape.empty() ? 0 : info->shape[0];
    if (rows < 1 || rows > vocab)
      return invalid_argument("'{}': lm_head.weight has {} rows, the target {} tokens", folder_, rows, vocab);
    OASIS_RETURN_IF_ERROR(linear("lm_head", rows, c.hidden, head_.lm_head));
  } else {
    head_.lm_head.w = c.tied ? head_.embed : target_.weights().lm_head;
    if (head_.lm_head.w.cols != c.hidden)
      return invalid_argument("'{}' has no lm_head.weight and the target's has {} columns, the head {}", folder_,
                              head_.lm_head.w.cols, c.hidden);
  }

  const int64_t drafts = head_.draft_vocab();
  std::vector<int64_t> offsets(static_cast<size_t>(drafts), 0);
  if (find("d2t")) {
    OASIS_ASSIGN_OR_RETURN(const TensorInfo* info, require("d2t", {drafts}));
    OASIS_ASSIGN_OR_RETURN(auto read, model::to_int64s(*info, "d2t"));
    if (drafts != vocab) offsets = std::move(read);
  }
  std::vector<bool> seen(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < drafts; ++i) {
    const int64_t offset = offsets[static_cast<size_t>(i)];
    if (offset < -i || offset >= vocab - i)
      return data_corruption("'{}': d2t[{}] = {} leads to a token outside the target's vocabulary of {}", folder_, i,
                             offset, vocab);
    const auto id = static_cast<size_t>(i + offset);
    if (seen[id]) return data_corruption("'{}': d2t maps two draft tokens to token {}", folder_, id);
    seen[id] = true;
    head_.target_id.push_back(static_cast<int32_t>(id));
  }
  return {};
}

// What is not understood would be left out of the computation in silence.
Status HeadReader::refuse_others() const {
  for (const auto& [name, info] : tensors_)
    if (!used_.contains(name))
      return unsupported("'{}': tensor '{}' {} is not known in an EAGLE-3 head of one layer", folder_,
                         model::printable(name), model::to_string(info->shape));
  return {};
}

uint64_t HeadReader::fingerprint() const {
  constexpr size_t kSampleBytes = 4096, kSamples = 16;
  const HeadConfig& c = head_.config;
  std::string numbers =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {}", c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate,
                  c.rms_eps, fmt::join(c.taps, ","), c.final_state, c.norm_before_residual, c.norm_output, c.tied);
  for (double f : model::rope_frequencies(c.rope, c.head_dim)) numbers += fmt::format(" {}", f);
  numbers += fmt::format(" {}", model::rope_attention_scale(c.rope));
  uint64_t hash = XXH3_64bits(numbers.data(), numbers.size());
  for (const auto& [name, info] : used_) {
    hash = XXH3_64bits_withSeed(name.data(), name.size(), hash);
    const size_t size = info->data.size(), step = size / kSamples;
    if (step <= kSampleBytes) {
      hash = XXH3_64bits_withSeed(info->data.data(), size, hash);
    } else {
      for (size_t i = 0; i < kSamples; ++i)
        hash = XXH3_64bits_withSeed(info->data.data() + i * step, kSampleBytes, hash);
    }
  }
  return hash;
}

Result<Head> HeadReader::read() {
  OASIS_RETURN_IF_ERROR(open_files());
  OASIS_ASSIGN_OR_RETURN(head_.config, read_head_config(folder_ + "/config.json", target_.config()));
  OASIS_RETURN_IF_ERROR(model::validate(head_.config.rope, head_.config.head_dim));
  OASIS_RETURN_IF_ERROR(read_features());
  OASIS_RETURN_IF_ERROR(read_norms());
  OASIS_RETURN_IF_ERROR(read_layer());
  OASIS_RETURN_IF_ERROR(read_vocabulary());
  OASIS_RETURN_IF_ERROR(refuse_others());
  head_.fingerprint = fingerprint();
  return std::move(head_);
}

}  // namespace

Result<Head> open_head(const std::string& folder, const model::Checkpoint& target) {
  return HeadReader(folder, target).read();
}

Status move_to_device(Head& head, model::DeviceWeights& weights) {
  for (WeightView* view : {&head.embed, &head.q.w, &head.k.w, &head.v.w, &head.o.w, &head.gate.w, &head.up.w,
                           &head.down.w, &head.lm_head.w}) {
    OASIS_ASSIGN_OR_RETURN(*view, weights.upload(*view));
  }
  for (WeightView& view : head.fc) {
    OASIS_ASSIGN_OR_RETURN(view, weights.upload(view));
  }
  for (std::span<const float>* values :
       {&head.fc_bias, &head.concat_norm, &head.final_norm, &head.embed_norm, &head.feature_norm, &head.mlp_norm,
        &head.output_norm, &head.q_norm, &head.k_norm, &head.q.bias, &head.k.bias, &head.v.bias, &head.o.bias,
        &head.gate.bias, &head.up.bias, &head.down.bias, &head.lm_head.bias}) {
    OASIS_ASSIGN_OR_RETURN(*values, weights.upload(*values));
  }
  for (std::span<const float>& norm : head.tap_norm) {
    OASIS_ASSIGN_OR_RETURN(norm, weights.upload(norm));
  }
  return {};
}

}  // namespace oasis::draft
