// How well lookahead predicts and what it costs, on real text, teacher-forced (docs/results.md states the figures).
//
//   lookahead_study MODEL HEAD_DIR TEXT CONTEXT STEPS DOCUMENTS [K]
//
// Cuts DOCUMENTS pieces of CONTEXT tokens out of TEXT, prefills all but the last STEPS tokens of each and forces those.
// Every variant is held against the dense run of the same piece. Prints one table row a variant and the agreement of
// each layer.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "oasis/engine/engine.h"

namespace {

using namespace oasis;

struct Variant {
  const char* name;
  std::string draft;
  engine::Attention attention;
  lookahead::BlockScore score;
  lookahead::FetchMode fetch;
  double resident_ratio, fetch_ratio;
};

struct Outcome {
  double kl = 0, top1 = 0, nll = 0;
  int64_t steps = 0, fetched = 0, misses = 0, compared = 0, right = 0;
  double agreement_sum = 0, cover_sum = 0;
  int64_t agreement_count = 0;
  std::vector<double> layer_sum, layer_count;
};

std::vector<float> log_softmax(std::span<const float> z) {
  float top = z[0];
  for (const float v : z) top = std::max(top, v);
  double sum = 0;
  for (const float v : z) sum += std::exp(static_cast<double>(v - top));
  std::vector<float> out(z.begin(), z.end());
  for (float& v : out) v -= top + static_cast<float>(std::log(sum));
  return out;
}

void die(const Status& s) {
  std::fprintf(stderr, "lookahead_study: %s\n", s.message().c_str());
  std::exit(1);
}

// Runs one piece; `dense` holds the dense run's log-probabilities a step, filled if empty.
void run(const Variant& v, Device& device, const model::Checkpoint& checkpoint, std::span<const int32_t> piece,
         int steps, int k, std::vector<std::vector<float>>& dense, Outcome& out) {
  engine::EngineConfig config;
  config.max_context = static_cast<int64_t>(piece.size());
  config.attention = v.attention;
  config.top_k_blocks = k;
  config.resident_ratio = v.resident_ratio;
  config.block_score = v.score;
  config.fetch = v.fetch;
  config.fetch_ratio = v.fetch_ratio;
  config.draft = v.draft;
  config.agreement_every = 4;
  auto made = engine::Engine::create(device, checkpoint, nullptr, config);
  if (!made.ok()) die(made.status());
  engine::Request r;
  const auto prompt = piece.size() - static_cast<size_t>(steps);
  r.prompt.assign(piece.begin(), piece.begin() + static_cast<int64_t>(prompt));
  r.forced.assign(piece.begin() + static_cast<int64_t>(prompt), piece.end());
  r.max_tokens = steps;
  r.ignore_eos = true;
  const bool first = dense.empty();
  r.on_logits = [&](int32_t index, std::span<const float> z) {
    const auto p = log_softmax(z);
    const int32_t next = piece[prompt + static_cast<size_t>(index)];
    if (first) dense.push_back(p);
    if (index == 0) return;  // sampled from the dense prefill
    const auto& d = dense[static_cast<size_t>(index)];
    double kl = 0;
    for (size_t i = 0; i < p.size(); ++i) kl += std::exp(static_cast<double>(d[i])) * (d[i] - p[i]);
    out.kl += kl;
    out.nll -= p[static_cast<size_t>(next)];
    out.top1 += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(d.begin(), d.end()) - d.begin();
    ++out.steps;
  };
  auto id = (*made)->submit(std::move(r));
  if (!id.ok()) die(id.status());
  (*made)->run_until_idle();
  const auto stats = (*made)->take_stats(*id).value_or(engine::RequestStats{});
  const auto m = (*made)->metrics();
  out.fetched += m.core.blocks;
  out.misses += m.core.misses;
  out.compared += stats.compared;
  out.right += stats.right;
  out.agreement_sum += m.core.agreement_sum;
  out.cover_sum += m.core.cover_sum;
  out.agreement_count += m.core.agreement_count;
  out.layer_sum.resize(m.core.layer_agreement_sum.size());
  out.layer_count.resize(out.layer_sum.size());
  for (size_t l = 0; l < out.layer_sum.size(); ++l) {
    out.layer_sum[l] += m.core.layer_agreement_sum[l];
    out.layer_count[l] += static_cast<double>(m.core.layer_agreement_count[l]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: lookahead_study MODEL HEAD_DIR TEXT CONTEXT STEPS DOCUMENTS [K]\n");
    return 2;
  }
  const int context = std::atoi(argv[4]), steps = std::atoi(argv[5]), documents = std::atoi(argv[6]);
  const int k = argc > 7 ? std::atoi(argv[7]) : 64;
  auto device = make_cpu_device(0);
  auto checkpoint = model::Checkpoint::open(argv[1]);
  if (!checkpoint.ok()) die(checkpoint.status());
  auto spec = checkpoint->tokenizer_spec();
  if (!spec.ok()) die(spec.status());
  auto tokenizer = text::Tokenizer::create(std::move(*spec));
  if (!tokenizer.ok()) die(tokenizer.status());
  std::ifstream in(argv[3], std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const auto ids = tokenizer->encode(text, false, false);
  const size_t pieces = ids.size() / static_cast<size_t>(context);
  if (context <= steps || pieces < static_cast<size_t>(documents) || documents < 1) {
    die(invalid_argument("'{}' has {} tokens: {} pieces of {} are needed", argv[3], ids.size(), documents, context));
  }
  const std::string head = std::string("eagle3:") + argv[2];
  using engine::Attention;
  using lookahead::BlockScore;
  using lookahead::FetchMode;
  const Variant variants[] = {
      {"dense", "none", Attention::kDense, BlockScore::kShrunk, FetchMode::kBounded, 0, 0.05},
      {"head, minmax, R=K", head, Attention::kSparse, BlockScore::kMinMax, FetchMode::kBounded, 1, 0.05},
      {"ngram, minmax, R=K", "ngram", Attention::kSparse, BlockScore::kMinMax, FetchMode::kBounded, 1, 0.05},
      {"none, minmax, R=K", "none", Attention::kSparse, BlockScore::kMinMax, FetchMode::kBounded, 1, 0.05},
      {"head, minmax, exact", head, Attention::kSparse, BlockScore::kMinMax, FetchMode::kExact, 1, 0.05},
      {"head, shrunk, exact", head, Attention::kSparse, BlockScore::kShrunk, FetchMode::kExact, 1, 0.05},
      {"head, shrunk, R=K", head, Attention::kSparse, BlockScore::kShrunk, FetchMode::kBounded, 1, 0.05},
      {"ngram, shrunk, R=K", "ngram", Attention::kSparse, BlockScore::kShrunk, FetchMode::kBounded, 1, 0.05},
      {"none, shrunk, R=K", "none", Attention::kSparse, BlockScore::kShrunk, FetchMode::kBounded, 1, 0.05},
      {"head, shrunk, R=1.5K", head, Attention::kSparse, BlockScore::kShrunk, FetchMode::kBounded, 1.5, 0.05},
      {"head, minmax, R=1.5K", head, Attention::kSparse, BlockScore::kMinMax, FetchMode::kBounded, 1.5, 0.05},
      {"head, shrunk, adaptive", head, Attention::kSparse, BlockScore::kShrunk, FetchMode::kAdaptive, 1.5, 0.05},
  };
  std::vector<Outcome> outcomes(std::size(variants));
  for (int d = 0; d < documents; ++d) {
    const size_t piece = static_cast<size_t>(d) * pieces / static_cast<size_t>(documents);
    const std::span<const int32_t> tokens(ids.data() + piece * static_cast<size_t>(context),
                                          static_cast<size_t>(context));
    std::vector<std::vector<float>> dense;
    for (size_t v = 0; v < outcomes.size(); ++v) {
      std::fprintf(stderr, "\rdocument %d of %d, %-24s", d + 1, documents, variants[v].name);
      run(variants[v], *device, *checkpoint, tokens, steps, k, dense, outcomes[v]);
    }
  }
  std::fprintf(stderr, "\r%60s\r", "");
  const double heads = static_cast<double>(checkpoint->config().layers) * checkpoint->config().kv_heads;
  std::printf("%d pieces of %d tokens, last %d forced, K=%d\n", documents, context, steps, k);
  std::printf("%-24s %6s %6s %6s %7s %8s %7s %7s %7s\n", "variant", "right", "agree", "cover", "misses", "fetched",
              "KL", "top-1", "NLL");
  for (size_t v = 0; v < outcomes.size(); ++v) {
    const Outcome& o = outcomes[v];
    const double n = static_cast<double>(o.steps), a = std::max<double>(1, static_cast<double>(o.agreement_count));
    std::printf("%-24s %6.3f %6.3f %6.3f %7.2f %8.2f %7.4f %7.3f %7.3f\n", variants[v].name,
                static_cast<double>(o.right) / std::max<double>(1, static_cast<double>(o.compared)),
                o.agreement_sum / a, o.cover_sum / a, static_cast<double>(o.misses) / n / heads,
                static_cast<double>(o.fetched) / n / heads, o.kl / n, o.top1 / n, o.nll / n);
  }
  std::printf("\nagreement by layer\n%-24s", "");
  for (size_t l = 0; l < outcomes[1].layer_sum.size(); ++l) std::printf(" %4zu", l);
  std::printf("\n");
  for (size_t v = 1; v < outcomes.size(); ++v) {
    std::printf("%-24s", variants[v].name);
    for (size_t l = 0; l < outcomes[v].layer_sum.size(); ++l)
      std::printf(" %4.2f", outcomes[v].layer_sum[l] / std::max(1.0, outcomes[v].layer_count[l]));
    std::printf("\n");
  }
}
