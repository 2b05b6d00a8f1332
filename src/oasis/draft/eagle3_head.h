// An EAGLE-3 head as it lies in its folder: config.json and *.safetensors, checked against the target it is for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oasis/base/dtype.h"
#include "oasis/base/status.h"
#include "oasis/model/device_weights.h"
#include "oasis/model/safetensors.h"

namespace oasis::draft {

struct HeadConfig {
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // heads * head_dim may differ from hidden
  int intermediate = 0;
  float rms_eps = 1e-5f;
  model::RopeConfig rope;  // the head's own; its max_position_embeddings bounds nothing
  int target_hidden = 0;
  std::vector<int> taps;  // residual streams before these target layers; `layers`: after the last
  // The feature is the target's final state (after its last norm) in place of fused taps.
  bool final_state = false;
  bool norm_before_residual = false;  // the residual starts from the normed feature
  bool norm_output = false;           // the next step's feature is the normed output
  bool tied = false;                  // says where a missing lm_head is found
};

// `target` gives the defaults of what the file leaves out.
Result<HeadConfig> read_head_config(const std::string& path, const model::ModelConfig& target);

// y = w x + bias
struct Linear {
  WeightView w;
  std::span<const float> bias;  // [w.rows] or empty
};

struct Head {
  HeadConfig config;
  WeightView embed;                              // [vocab, hidden], the head's own or the target's
  std::vector<WeightView> fc;                    // [hidden, target_hidden] a tap, in the order of config.taps
  std::span<const float> fc_bias;                // [hidden] or empty
  std::vector<std::span<const float>> tap_norm;  // `fc_norm`: [target_hidden] a tap, or none
  std::span<const float> concat_norm;            // `input_norm` over all taps: [taps * target_hidden] or empty
  std::span<const float> final_norm;             // [target_hidden], the target's, where the feature is its final state
  float target_rms_eps = 1e-5f;
  std::span<const float> embed_norm, feature_norm, mlp_norm, output_norm;  // [hidden]
  std::span<const float> q_norm, k_norm;                                   // [head_dim] or empty
  Linear q, k, v, o, gate, up, down, lm_head;  // q, k and v read [embedding, feature]: 2 * hidden columns
  std::vector<int32_t> target_id;              // [draft_vocab]: target token of each draft token
  uint64_t fingerprint = 0;                    // of all the numbers that features, draft KV and drafts depend on
  int64_t weight_bytes = 0;

  int64_t draft_vocab() const { return lm_head.w.rows; }

  // What the views point into.
  std::vector<model::SafetensorsFile> files;
  std::vector<std::vector<std::byte>> owned;
  std::vector<std::vector<float>> owned_floats;
};

// Of the target's sizes, three taps and 32,000 draft tokens; the same for the same seed.
Head make_random_head(const model::Checkpoint& target, uint64_t seed);

// Moves every view to where the device of `weights` computes.
Status move_to_device(Head& head, model::DeviceWeights& weights);

// Borrows the target's embeddings.
Result<Head> open_head(const std::string& folder, const model::Checkpoint& target);

}  // namespace oasis::draft
