#include "oasis/engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>

#include "oasis/engine/philox.h"

namespace oasis::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
// A row is read in chunks: their maxima say where the large logits are, their masses where a draw falls.
constexpr size_t kChunk = 256;
constexpr size_t kLanes = 16;
// Likeliest tokens among which top-p is looked for first.
constexpr size_t kFirstLook = 512;

struct Candidate {
  float logit;
  float weight;  // exp((logit - max) / temperature)
  int32_t token;
};
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// exp(x) for x in [kLeast, 0], to 2e-7, and 0 at kLeast. Written so that loops over it vectorise. Polynomial of Cephes'
// expf.
constexpr float kLeast = -88.0f;
inline float exp_of(float x) {
  constexpr float kRound = 0x1.8p23f;                   // adding it rounds to an integer
  const float n = (x * 1.44269504f + kRound) - kRound;  // >= -127
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);  // 2^n; 0 for n = -127
}

struct Peaks {
  float max = -kInf, second = -kInf;
  int32_t argmax = -1;  // -1: nothing above -inf
  std::vector<float> chunk_max;
};

// NaN never wins a comparison here: it counts as absent.
Peaks find_peaks(std::span<const float> logits) {
  Peaks peaks;
  peaks.chunk_max.reserve(logits.size() / kChunk + 1);
  size_t best_chunk = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kChunk) {
    const auto chunk = logits.subspan(begin, std::min(kChunk, logits.size() - begin));
    float first[kLanes], second[kLanes];
    std::fill_n(first, kLanes, -kInf);
    std::fill_n(second, kLanes, -kInf);
    const auto take = [&](size_t lane, float x) {
      const float low = first[lane] < x ? first[lane] : x;
      second[lane] = low > second[lane] ? low : second[lane];
      first[lane] = x > first[lane] ? x : first[lane];
    };
    size_t i = 0;
    for (; i + kLanes <= chunk.size(); i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) take(lane, chunk[i + lane]);
    for (; i < chunk.size(); ++i) take(0, chunk[i]);
    for (size_t lane = 1; lane < kLanes; ++lane) {
      take(0, first[lane]);
      take(0, second[lane]);
    }
    peaks.chunk_max.push_back(first[0]);
    if (first[0] > peaks.max) {
      peaks.second = std::max(peaks.max, second[0]);
      peaks.max = first[0];
      best_chunk = begin;
    } else {
      peaks.second = std::max(peaks.second, first[0]);
    }
  }
  if (peaks.max > -kInf)
    peaks.argmax = static_cast<int32_t>(
        std::find(logits.begin() + static_cast<ptrdiff_t>(best_chunk), logits.end(), peaks.max) - logits.begin());
  return peaks;
}

double mass_of(std::span<const Candidate> candidates) {
  double mass = 0;
  for (const Candidate& c : candidates) mass += c.weight;
  return mass;
}

// Keeps the fewest likeliest candidates whose measures add up to `target` (all, if they never do); their order stays. A
// histogram over the logits tells in which bucket the cut lies, and only that bucket is sorted: linear in all but
// contrived rows.
template <typename Measure>
void keep(std::vector<Candidate>& candidates, double target, Measure measure) {
  if (candidates.empty()) return;
  constexpr size_t kBuckets = 1024;
  const auto [low, high] = std::minmax_element(candidates.begin(), candidates.end(),
                                               [](const auto& a, const auto& b) { return a.logit < b.logit; });
  const double top = high->logit, range = top - low->logit;
  const double scale = range > 0 ? (kBuckets - 1) / range : 0;
  const auto bucket = [&](const Candidate& c) { return static_cast<size_t>((top - c.logit) * scale); };
  std::array<double, kBuckets> sums{};
  for (const Candidate& c : candidates) sums[bucket(c)] += measure(c);
  double before = 0;
  size_t cut = 0;
  while (cut + 1 < kBuckets && before + sums[cut] < target) before += sums[cut++];

  std::vector<Candidate> border;
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(border),
               [&](const Candidate& c) { return bucket(c) == cut; });
  if (border.empty()) return;
  std::sort(border.begin(), border.end(), likelier);
  size_t last = 0;
  for (; last + 1 < border.size(); ++last) {
    before += measure(border[last]);
    if (before >= target) break;
  }
  const Candidate least = border[last];
  std::erase_if(candidates, [&](const Candidate& c) { return likelier(least, c); });
}

// A row after penalties and bias, under a temperature.
struct Row {
  std::span<const float> logits;
  const Peaks& peaks;
  float temperature;

  float exponent(float logit) const {
    const float x = (logit - peaks.max) / temperature;
    return x > kLeast ? x : kLeast;  // NaN too
  }
  float weight(float logit) const { return exp_of(exponent(logit)); }

  // Sum of the weights of each chunk, and of all.
  double masses(std::vector<double>& chunk_mass) const {
    double total = 0;
    for (size_t begin = 0; begin < logits.size(); begin += kChunk) {
      const auto chunk = logits.subspan(begin, std::min(kChunk, logits.size() - begin));
      float weights[kChunk] = {};
      // Two loops: fused they are not vectorised.
      for (size_t i = 0; i < chunk.size(); ++i) weights[i] = exponent(chunk[i]);
      for (size_t i = 0; i < chunk.size(); ++i) weights[i] = exp_of(weights[i]);
      float sum[kLanes] = {};
      for (size_t i = 0; i < kChunk; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += weights[i + lane];
      chunk_mass.push_back(std::accumulate(sum, sum + kLanes, 0.0));
      total += chunk_mass.back();
    }
    return total;
  }

  // Logits >= bound (and above -inf), in order of their ids.
  std::vector<Candidate> at_least(float bound) const {
    std::vector<Candidate> out;
    for (size_t c = 0; c < peaks.chunk_max.size(); ++c) {
      if (!(peaks.chunk_max[c] >= bound)) continue;
      const size_t end = std::min((c + 1) * kChunk, logits.size());
      for (size_t i = c * kChunk; i < end; ++i)
        if (logits[i] >= bound && logits[i] > -kInf)
          out.push_back({logits[i], weight(logits[i]), static_cast<int32_t>(i)});
    }
    return out;
  }

  // The k likeliest, in order of their ids.
  std::vector<Candidate> likeliest(size_t k) const {
    if (k == 0) return {};
    float bound = -kInf;
    if (k < peaks.chunk_max.size()) {  // k chunks have a logit >= the k-th largest chunk maximum
      std::vector<float> maxima = peaks.chunk_max;
      const auto kth = maxima.begin() + static_cast<ptrdiff_t>(k) - 1;
      std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<>());
      bound = *kth;
    }
    std::vector<Candidate> out = at_least(bound);
    if (out.size() > k) keep(out, static_cast<double>(k), [](const Candidate&) { return 1.0; });
    return out;
  }
};

// The candidates that top-k, top-p and min-p leave, in order of their ids; at least one of the three is on.
std::vector<Candidate> cut(const Row& row, const SamplingParams& params) {
  const size_t vocab = row.logits.size();
  std::vector<Candidate> out;
  double mass = 0;
  if (params.top_k > 0) {
    out = row.likeliest(static_cast<size_t>(params.top_k));
    mass = mass_of(out);
  } else if (params.top_p < 1) {
    std::vector<double> chunk_mass;
    mass = row.masses(chunk_mass);
    out = row.likeliest(kFirstLook);
    if (mass_of(out) < params.top_p * mass) {
      // Tokens less likely than (1 - top_p) / vocab cannot add up to 1 - top_p: none of them is needed. Half of that,
      // to be clear of rounding.
      const double least = 0.5 * (1.0 - params.top_p) / static_cast<double>(vocab) * mass;
      out = row.at_least(row.peaks.max + row.temperature * static_cast<float>(std::log(least)));
    }
  } else {
    // The bound is a little low, against rounding; the weights decide below.
    out = row.at_least(row.peaks.max + row.temperature * (std::log(params.min_p) - 1e-3f));
  }
  if (params.top_p < 1) keep(out, params.top_p * mass, [](const Candidate& c) { return double{c.weight}; });
  if (params.min_p > 0) std::erase_if(out, [&](const Candidate& c) { return c.weight < params.min_p; });
  return out;
}

// The first entry at which the running sum of weights passes `u` of the whole, u in [0, 1).
int32_t draw(std::span<const Candidate> candidates, double u) {
  const double target = u * mass_of(candidates);
  double sum = 0;
  int32_t last = -1;
  for (const Candidate& c : candidates) {
    if (c.weight <= 0) continue;
    sum += c.weight;
    last = c.token;
    if (sum > target) break;
  }
  return last;  // rounding can leave the whole just under the target: then it is the last
}

// The same over the whole row: first its chunk, then the entry.
int32_t draw(const Row& row, double u) {
  std::vector<double> chunk_mass;
  double target = u * row.masses(chunk_mass);
  size_t chosen = 0;
  for (size_t c = 0; c < chunk_mass.size(); ++c) {
    if (chunk_mass[c] <= 0) continue;
    chosen = c;
    if (chunk_mass[c] > target) break;
    target -= chunk_mass[c];
  }
  int32_t last = -1;
  for (size_t i = chosen * kChunk; i < std::min((chosen + 1) * kChunk, row.logits.size()); ++i) {
    const double weight = row.weight(row.logits[i]);
    if (weight <= 0) continue;
    last = static_cast<int32_t>(i);
    target -= weight;
    if (target < 0) break;
  }
  return last;
}

int32_t choose(std::span<const float> logits, const Peaks& peaks, const SamplingParams& params, int64_t position) {
  if (params.temperature == 0 || !(peaks.max < kInf)) return peaks.argmax;
  const Row row{logits, peaks, params.temperature};
  const double u = uniform(params.seed, static_cast<uint64_t>(position));
  const bool cuts =
      (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) || params.top_p < 1 || params.min_p > 0;
  return cuts ? draw(cut(row, params), u) : draw(row, u);
}

}  // namespace

Status validate(const SamplingParams& p, int64_t vocab) {
  const auto in = [](float x, float low, float high) { return x >= low && x <= high; };  // false for NaN
  if (!in(p.temperature, 0, std::numeric_limits<float>::max()))
    return invalid_argument("temperature is {}: it must be a finite number >= 0 (0: greedy)", p.temperature);
  if (p.top_k < 0) return invalid_argument("top_k is {}: it must be >= 0 (0: off)", p.top_k);
  if (!(p.top_p > 0 && p.top_p <= 1)) return invalid_argument("top_p is {}: it must be in (0, 1] (1: off)", p.top_p);
  if (!in(p.min_p, 0, 1)) return invalid_argument("min_p is {}: it must be in [0, 1] (0: off)", p.min_p);
  if (!in(p.repetition_penalty, 0.01f, 100))
    return invalid_argument("repetition_penalty is {}: it must be in [0.01, 100] (1: off)", p.repetition_penalty);
  if (!in(p.presence_penalty, -2, 2))
    return invalid_argument("presence_penalty is {}: it must be in [-2, 2] (0: off)", p.presence_penalty);
  if (!in(p.frequency_penalty, -2, 2))
    return invalid_argument("frequency_penalty is {}: it must be in [-2, 2] (0: off)", p.frequency_penalty);
  if (p.logprobs < -1 || p.logprobs > 20)
    return invalid_argument("logprobs is {}: it must be in [0, 20], or -1 for none", p.logprobs);
  std::vector<int32_t> seen;
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab)
      return invalid_argument("logit_bias names token {}: the vocabulary is [0, {}]", token, vocab - 1);
    if (!in(bias, -100, 100))
      return invalid_argument("logit_bias of token {} is {}: it must be in [-100, 100]", token, bias);
    seen.push_back(token);
  }
  std::sort(seen.begin(), seen.end());
  if (const auto twice = std::adjacent_find(seen.begin(), seen.end()); twice != seen.end())
    return invalid_argument("logit_bias names token {} more than once: give each token one bias", *twice);
  return {};
}

Sampler::Sampler(SamplingParams params, int64_t vocab, std::span<const int32_t> prompt)
    : params_(std::move(params)), vocab_(vocab) {
  if (params_.repetition_penalty == 1) return;
  std::copy_if(prompt.begin(), prompt.end(), std::back_inserter(seen_),
               [&](int32_t token) { return token >= 0 && token < vocab_; });
  std::sort(seen_.begin(), seen_.end());
  seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
}

bool Sampler::plain_greedy() const {
  const SamplingParams& p = params_;
  return p.temperature == 0 && p.repetition_penalty == 1 && p.presence_penalty == 0 && p.frequency_penalty == 0 &&
         p.logit_bias.empty() && p.logprobs < 0;
}

void Sampler::append(int32_t token) {
  OASIS_CHECK(token >= 0 && token < vocab_, "token {} is outside [0, {})", token, vocab_);
  const auto at = std::lower_bound(counts_.begin(), counts_.end(), std::pair{token, 0});
  if (at != counts_.end() && at->first == token)
    ++at->second;
  else
    counts_.insert(at, {token, 1});
  if (params_.repetition_penalty == 1) return;
  const auto seen = std::lower_bound(seen_.begin(), seen_.end(), token);
  if (seen == seen_.end() || *seen != token) seen_.insert(seen, token);
}

void Sampler::penalise(std::span<float> logits) {
  edits_.clear();
  const auto edit = [&](int32_t token) -> float& {
    float& logit = logits[static_cast<size_t>(token)];
    edits_.push_back({token, logit});
    return logit;
  };
  if (params_.repetition_penalty != 1) {
    for (int32_t token : seen_) {
      float& logit = edit(token);
      logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    }
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) {
    for (const auto& [token, count] : counts_)
      edit(token) -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
  for (const auto& [token, bias] : params_.logit_bias) edit(token) += bias;
}

namespace {

// log(sum(exp(logits))), and the `n` most likely, likeliest first. Not all logits are infinite.
double log_total_and_top(std::span<const float> logits, const Peaks& peaks, int32_t n, std::vector<TokenLogprob>& out) {
  const Row raw{logits, peaks, 1};
  std::vector<double> chunk_mass;
  const double log_total = static_cast<double>(peaks.max) + std::log(raw.masses(chunk_mass));
  std::vector<Candidate> top = raw.likeliest(static_cast<size_t>(n));
  std::sort(top.begin(), top.end(), likelier);
  for (const Candidate& c : top) out.push_back({c.token, static_cast<float>(c.logit - log_total)});
  return log_total;
}

}  // namespace

Sampled logprob_of(std::span<const float> logits, int32_t token, int32_t top) {
  Sampled out{.token = token};
  const Peaks peaks = find_peaks(logits);
  if (!std::isfinite(peaks.max)) return {};
  const double log_total = log_total_and_top(logits, peaks, top, out.top);
  out.margin = peaks.max - peaks.second;
  out.logprob = static_cast<float>(logits[static_cast<size_t>(token)] - log_total);
  return out;
}

Sampled Sampler::sample(std::span<float> logits, int64_t position) {
  OASIS_CHECK(static_cast<int64_t>(logits.size()) == vocab_, "{} logits for a vocabulary of {}", logits.size(), vocab_);
  Sampled out;
  double log_total = 0;
  Peaks peaks = find_peaks(logits);
  if (params_.logprobs >= 0 && std::isfinite(peaks.max)) {
    log_total = log_total_and_top(logits, peaks, params_.logprobs, out.top);
  }
  penalise(logits);
  if (!edits_.empty()) peaks = find_peaks(logits);
  out.token = choose(logits, peaks, params_, position);
  if (out.token < 0) return out;
  out.margin = peaks.max - peaks.second;
  if (params_.logprobs >= 0) {
    const auto edit = std::find_if(edits_.begin(), edits_.end(), [&](const Edit& e) { return e.token == out.token; });
    const float raw = edit != edits_.end() ? edit->raw : logits[static_cast<size_t>(out.token)];
    out.logprob = static_cast<float>(raw - log_total);
  }
  return out;
}

// Sampling from p and accepting where the sample is the draft is rejection sampling of a deterministic draft: P(accept)
// = p(draft), and given a rejection the sample is distributed as p without the draft.
Sampled Sampler::sample_or_accept(std::span<float> logits, int64_t position, int32_t draft, bool& accepted) {
  Sampled out = sample(logits, position);
  accepted = out.token >= 0 && out.token == draft;
  return out;
}

}  // namespace oasis::engine
