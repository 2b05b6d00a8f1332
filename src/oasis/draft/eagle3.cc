#include "oasis/draft/eagle3.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "oasis/draft/eagle3_cache.h"
#include "oasis/draft/eagle3_head.h"
#include "oasis/draft/eagle3_layer.h"

namespace oasis::draft {

namespace {

Status validate(const DrafterOptions& options, int32_t window_tokens) {
  if (options.max_sequences < 1 || options.max_rows < 1 || options.block_size < 1 || window_tokens < options.block_size)
    return invalid_argument(
        "a drafter for {} sequences, {} rows and a window of {} tokens in blocks of {}: each must be positive and the "
        "window hold a block",
        options.max_sequences, options.max_rows, window_tokens, options.block_size);
  return {};
}

CacheShape cache_shape(const Head& head, const DrafterOptions& options, int32_t window_tokens) {
  CacheShape shape;
  shape.kv = {.layers = 1,
              .kv_heads = head.config.kv_heads,
              .head_dim = head.config.head_dim,
              .block_size = options.block_size};
  shape.max_sequences = options.max_sequences;
  shape.window_blocks = window_tokens / options.block_size;
  shape.max_rows = options.max_rows;
  shape.feature_dim = feature_floats(head);
  return shape;
}

bool has_biases(const Head& head) {
  const Linear* linears[] = {&head.q, &head.k, &head.v, &head.o, &head.gate, &head.up, &head.down, &head.lm_head};
  return !head.fc_bias.empty() || std::ranges::any_of(linears, [](const Linear* l) { return !l->bias.empty(); });
}

class Eagle3 : public Drafter {
 public:
  explicit Eagle3(Head head) : head_(std::move(head)) {}
  Status allocate(Device& device, const DrafterOptions& options, int32_t window_tokens);

  std::string name() const override { return "eagle3"; }
  std::span<const int> tap_layers() const override { return head_.config.taps; }
  int64_t feature_dim() const override { return feature_floats(head_); }
  void fold_tap(Stream& stream, int tap, const float* x, int64_t rows, float* features) override {
    layer_->fold_tap(stream, tap, x, rows, features);
  }

  int64_t fast_bytes() const override { return cache_->bytes(); }
  int64_t home_bytes() const override { return cache_->shape().record_bytes(); }
  int64_t scratch_bytes() const override {
    return Eagle3Layer::scratch_bytes(head_, cache_->shape().max_rows, cache_->shape().max_sequences);
  }
  uint64_t fingerprint() const override { return head_.fingerprint; }

  Status attach(int32_t sequence) override;
  void detach(int32_t sequence) override { cache_->detach(sequence); }
  void pretend(int32_t sequence, int32_t rows) override { cache_->pretend(sequence, rows); }
  void absorb(Stream& stream, int32_t sequence, int32_t first, int32_t rows, const float* features,
              const int32_t* next_tokens) override;
  void store_block(int32_t sequence, int32_t block, std::byte* out) override {
    cache_->read_record(sequence, block, out);
  }
  void load_block(Stream& stream, int32_t sequence, int32_t block, const std::byte* in, int32_t next_token) override;
  void propose(Stream& stream, std::span<ProposeItem> items) override;
  std::vector<std::byte> save(int32_t sequence) override { return cache_->save(sequence); }
  Status restore(int32_t sequence, std::span<const std::byte> state) override;

 private:
  // What the target has verified since the last call.
  struct Verified {
    std::vector<Row> past;    // rows that only write their KV
    std::vector<Row> newest;  // the last row of each item that drafts
  };
  Verified collect(Stream& stream, std::span<ProposeItem* const> items);

  Head head_;
  std::optional<Eagle3Cache> cache_;
  std::optional<Eagle3Layer> layer_;
};

Status Eagle3::allocate(Device& device, const DrafterOptions& options, int32_t window_tokens) {
  if (options.weights) OASIS_RETURN_IF_ERROR(move_to_device(head_, *options.weights));
  if (device.backend() != Backend::kCpu && (has_biases(head_) || !head_.concat_norm.empty())) {
    return unsupported("a draft head with biases or a norm over all taps (input_norm) runs on the CPU alone so far");
  }
  OASIS_ASSIGN_OR_RETURN(cache_, Eagle3Cache::create(device, cache_shape(head_, options, window_tokens)));
  OASIS_ASSIGN_OR_RETURN(layer_, Eagle3Layer::create(device, head_, options.max_rows, options.max_sequences,
                                                     cache_->shape().window_blocks));
  return {};
}

Status Eagle3::attach(int32_t sequence) {
  if (sequence < 0 || sequence >= cache_->shape().max_sequences)
    return invalid_argument("sequence {} is outside the drafter's {}", sequence, cache_->shape().max_sequences);
  if (cache_->attached(sequence)) return invalid_argument("sequence {} is attached already", sequence);
  cache_->attach(sequence);
  return {};
}

Status Eagle3::restore(int32_t sequence, std::span<const std::byte> state) {
  OASIS_CHECK(cache_->attached(sequence), "sequence {} is restored before it is attached", sequence);
  return cache_->restore(sequence, state);
}

void Eagle3::absorb(Stream& stream, int32_t sequence, int32_t first, int32_t rows, const float* features,
                    const int32_t* next_tokens) {
  OASIS_CHECK(rows <= cache_->shape().max_rows, "{} rows to absorb, made for {}", rows, cache_->shape().max_rows);
  cache_->advance(sequence, first, rows);
  stream.synchronize();  // the features are read here
  std::vector<Row> in;
  for (int32_t i = 0; i < rows; ++i) {
    in.push_back({sequence, first + i, next_tokens[i], features + i * feature_dim()});
    cache_->keep_feature(stream, sequence, first + i, in.back().feature);
  }
  layer_->take_in(stream, in, *cache_);
}

void Eagle3::load_block(Stream& stream, int32_t sequence, int32_t block, const std::byte* in, int32_t next_token) {
  const int32_t block_size = cache_->shape().kv.block_size;
  cache_->advance(sequence, block * block_size, block_size);
  stream.synchronize();
  const float* feature = cache_->write_record(sequence, block, in);
  const std::array<Row, 1> last = {{{sequence, (block + 1) * block_size - 1, next_token, feature}}};
  layer_->take_in(stream, last, *cache_);
}

Eagle3::Verified Eagle3::collect(Stream& stream, std::span<ProposeItem* const> items) {
  Verified verified;
  for (const ProposeItem* item : items) {
    if (item->rows == 0) continue;
    OASIS_CHECK(item->rows <= cache_->shape().max_rows && item->want <= cache_->shape().kv.block_size,
                "an item of {} rows that wants {} drafts, made for {} and {}", item->rows, item->want,
                cache_->shape().max_rows, cache_->shape().kv.block_size);
    OASIS_CHECK(static_cast<size_t>(item->first_position + item->rows) + 1 == item->history.size(),
                "rows {} .. {} of a sequence of {} tokens", item->first_position, item->first_position + item->rows,
                item->history.size());
    cache_->advance(item->sequence, item->first_position, item->rows);
    for (int32_t i = 0; i < item->rows; ++i) {
      const int32_t position = item->first_position + i;
      const float* feature = item->features + i * feature_dim();
      cache_->keep_feature(stream, item->sequence, position, feature);
      const bool drafts = item->want > 0 && i == item->rows - 1;
      (drafts ? verified.newest : verified.past)
          .push_back({item->sequence, position, item->history[static_cast<size_t>(position) + 1], feature});
    }
  }
  return verified;
}

void Eagle3::propose(Stream& stream, std::span<ProposeItem> items) {
  stream.synchronize();
  std::vector<ProposeItem*> drafting;
  for (ProposeItem& item : items) {
    item.count = 0;
    drafting.push_back(&item);
  }
  // Whoever wants fewer drafts leaves the chain from its end.
  std::ranges::stable_sort(drafting, std::greater{}, &ProposeItem::want);
  auto [past, chain] = collect(stream, drafting);
  std::erase_if(drafting, [](const ProposeItem* item) { return item->rows == 0 || item->want == 0; });
  layer_->take_in(stream, past, *cache_);

  layer_->begin_chain(stream, chain);
  for (int32_t step = 0; !chain.empty(); ++step) {
    const auto drafts = layer_->step_chain(stream, chain, *cache_);
    for (size_t i = 0; i < chain.size(); ++i) {
      chain[i].token = drafting[i]->drafts[step] = drafts[i];
      ++chain[i].position;
      ++drafting[i]->count;
    }
    while (!chain.empty() && drafting[chain.size() - 1]->want == step + 1) chain.pop_back();
  }
}

}  // namespace

namespace {

// "random:SEED" in place of a folder: a head of random weights.
Result<Head> open_any_head(const std::string& folder, const model::Checkpoint& target) {
  constexpr std::string_view kRandom = "random:";
  if (!folder.starts_with(kRandom)) return open_head(folder, target);
  uint64_t seed = 0;
  const char* end = folder.data() + folder.size();
  const auto [next, error] = std::from_chars(folder.data() + kRandom.size(), end, seed);
  if (error != std::errc() || next != end) return invalid_argument("'{}': write random:SEED", folder);
  return make_random_head(target, seed);
}

}  // namespace

Result<std::unique_ptr<Drafter>> make_eagle3(Device& device, const std::string& folder, const model::Checkpoint& target,
                                             const DrafterOptions& options, int32_t window_tokens) {
  OASIS_RETURN_IF_ERROR(validate(options, window_tokens));
  OASIS_ASSIGN_OR_RETURN(Head head, open_any_head(folder, target));
  auto drafter = std::make_unique<Eagle3>(std::move(head));
  OASIS_RETURN_IF_ERROR(drafter->allocate(device, options, window_tokens));
  return std::unique_ptr<Drafter>(std::move(drafter));
}

Result<DrafterPlan> plan_eagle3(const std::string& folder, const model::Checkpoint& target,
                                const DrafterOptions& options) {
  OASIS_RETURN_IF_ERROR(validate(options, kWindowTokens));
  OASIS_ASSIGN_OR_RETURN(const Head head, open_any_head(folder, target));
  const CacheShape shape = cache_shape(head, options, kWindowTokens);
  return DrafterPlan{.fast_bytes = shape.bytes(),
                     .scratch_bytes = Eagle3Layer::scratch_bytes(head, options.max_rows, options.max_sequences),
                     .weight_bytes = head.weight_bytes,
                     .home_bytes = shape.record_bytes(),
                     .feature_dim = shape.feature_dim};
}

}  // namespace oasis::draft
