// config.json of an EAGLE-3 head: that of a Llama with one layer, and a few keys of its own.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "oasis/draft/eagle3_head.h"
#include "oasis/model/json_file.h"

namespace oasis::draft {

namespace {

using nlohmann::json;

const json* find(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Status read_flag(const json& object, const char* key, const std::string& source, bool& out) {
  const json* value = find(object, key);
  if (!value) return {};
  if (!value->is_boolean()) return invalid_argument("'{}': {} must be true or false", source, key);
  out = value->get<bool>();
  return {};
}

// What is shared with Llama's config.json is read by its reader; what would only stop that is left out.
Result<model::ModelConfig> read_layer(json object, const std::string& source, const model::ModelConfig& target) {
  for (const char* key : {"attention_bias", "mlp_bias", "bos_token_id", "eos_token_id", "vocab_size"})
    object.erase(key);  // biases are found by their tensors
  const json* type = find(object, "model_type");
  if (!type || (*type != "llama" && *type != "qwen3")) object["model_type"] = "llama";
  if (!find(object, "rms_norm_eps")) object["rms_norm_eps"] = target.rms_eps;
  if (!find(object, "max_position_embeddings")) object["max_position_embeddings"] = target.context;
  object["num_hidden_layers"] = 1;
  object["vocab_size"] = target.vocab;
  return model::parse_config_json(object.dump(), source);
}

// Two conventions: ModelOpt and SpecForge number the layer whose output is meant, and start with 1; others the layer
// before which it is captured.
Status read_taps(const json& object, const std::string& source, const model::ModelConfig& target, HeadConfig& config) {
  const json* eagle = find(object, "eagle_config");
  const json* ids = find(object, "eagle_aux_hidden_state_layer_ids");
  if (!ids && eagle && eagle->is_object()) ids = find(*eagle, "eagle_aux_hidden_state_layer_ids");
  if (!ids || (ids->is_array() && ids->empty())) {
    config.taps = {2, target.layers / 2, target.layers - 3};
  } else {
    if (!ids->is_array() || ids->size() > 16)
      return invalid_argument("'{}': eagle_aux_hidden_state_layer_ids must be a list of up to 16 layers", source);
    for (const json& id : *ids) {
      if (!id.is_number_integer()) return invalid_argument("'{}': tap {} is not a layer number", source, id.dump());
      const int64_t layer = id.get<int64_t>();
      config.taps.push_back(static_cast<int>(std::clamp<int64_t>(layer, -1, 1 << 20)));
    }
    if (config.taps[0] == 1)
      for (int& tap : config.taps) ++tap;
  }
  for (size_t i = 0; i < config.taps.size(); ++i) {
    if (config.taps[i] < 0 || config.taps[i] > target.layers)
      return invalid_argument(
          "'{}': a tap before layer {}, but the target has {} layers; this head is for another model", source,
          config.taps[i], target.layers);
    if (i > 0 && config.taps[i] <= config.taps[i - 1])
      return invalid_argument(
          "'{}': taps before layers {} and {}: they must ascend; state them in "
          "eagle_aux_hidden_state_layer_ids",
          source, config.taps[i - 1], config.taps[i]);
  }
  return {};
}

}  // namespace

Result<HeadConfig> read_head_config(const std::string& path, const model::ModelConfig& target) {
  OASIS_ASSIGN_OR_RETURN(json object, model::read_json_file(path));
  if (!object.is_object()) return invalid_argument("'{}' is not a JSON object", path);
  HeadConfig config;
  if (const json* nested = find(object, "transformer_layer_config")) {  // the layout of `speculators`
    if (!nested->is_object()) return invalid_argument("'{}': transformer_layer_config is not an object", path);
    json merged = *nested;
    merged.update(object);
    object = std::move(merged);
    config.norm_before_residual = true;
  }
  OASIS_ASSIGN_OR_RETURN(const model::ModelConfig layer, read_layer(object, path, target));
  config.hidden = layer.hidden;
  config.heads = layer.heads;
  config.kv_heads = layer.kv_heads;
  config.head_dim = layer.head_dim;
  config.intermediate = layer.intermediate;
  config.rms_eps = layer.rms_eps;
  config.rope = layer.rope;

  config.target_hidden = config.hidden;
  if (const json* hidden = find(object, "target_hidden_size")) {
    if (!hidden->is_number_integer()) return invalid_argument("'{}': target_hidden_size is no integer", path);
    if (hidden->get<int64_t>() != target.hidden)
      return invalid_argument("'{}': target_hidden_size is {}, the target's is {}; this head is for another model",
                              path, hidden->get<int64_t>(), target.hidden);
    config.target_hidden = target.hidden;
  }
  OASIS_RETURN_IF_ERROR(read_flag(object, "norm_before_residual", path, config.norm_before_residual));
  OASIS_RETURN_IF_ERROR(read_flag(object, "norm_output", path, config.norm_output));
  OASIS_RETURN_IF_ERROR(read_flag(object, "tie_word_embeddings", path, config.tied));
  bool use_taps = true;
  OASIS_RETURN_IF_ERROR(read_flag(object, "use_aux_hidden_state", path, use_taps));
  if (const json* eagle = find(object, "eagle_config"); eagle && eagle->is_object())
    OASIS_RETURN_IF_ERROR(read_flag(*eagle, "use_aux_hidden_state", path, use_taps));
  config.final_state = !use_taps;
  if (config.final_state)
    config.taps = {target.layers};
  else
    OASIS_RETURN_IF_ERROR(read_taps(object, path, target, config));
  return config;
}

}  // namespace oasis::draft
