// prefix: time to the first token when a part of the prompt is in the capacity tier already.
#include <filesystem>

#include "eval/task.h"

namespace oasis::eval {

Result<Outcome> prefix(const Context& context) {
  if (context.texts.size() < 2)
    return invalid_argument("prefix needs two texts, so that prompts can differ: --text twice");
  constexpr int kShares[] = {0, 50, 90, 99, 100};
  const int64_t length = context.context - 16;
  OASIS_ASSIGN_OR_RETURN(const auto prompt, cut(context.texts[0], length, 0, 1));
  OASIS_ASSIGN_OR_RETURN(const auto other, cut(context.texts[1], length, 0, 1));
  std::vector<Unit> units;
  std::vector<std::pair<std::string, int>> names;
  for (const bool file : {false, true}) {
    for (const int share : kShares) {
      Variant v{file ? "file" : "DRAM", context.base};
      if (file) v.config.capacity_file = context.out + "/prefix.kv";
      const auto work = [&, v, share]() -> Result<Json> {
        OASIS_ASSIGN_OR_RETURN(auto session, Session::create(context.device, context.checkpoint, v, context.context));
        // An earlier prompt that begins alike.
        auto earlier = other;
        std::copy_n(prompt.begin(), length * share / 100, earlier.begin());
        OASIS_RETURN_IF_ERROR(session.run({.prompt = earlier, .free_tokens = 1, .score = false}).status());
        OASIS_ASSIGN_OR_RETURN(const Run run, session.run({.prompt = prompt, .free_tokens = 1, .score = false}));
        return Json{{"cached", run.stats.cached_tokens}, {"seconds", run.first_token_seconds}};
      };
      units.push_back({fmt::format("{} share{}", describe(context, v.config, prompt), share), work});
      names.emplace_back(v.name, share);
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, run_units(context, "prefix", units));
  std::error_code ignored;
  std::filesystem::remove(context.out + "/prefix.kv", ignored);

  Outcome out;
  out.table.title = fmt::format("{}: a prompt of {} tokens, one sequence", context.checkpoint.config().name, length);
  out.table.columns = {"capacity tier", "known %", "cached tokens", "seconds to first token"};
  std::vector<Series> series;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& [tier, share] = names[i];
    const double seconds = results[i]["seconds"].get<double>();
    out.table.rows.push_back({tier, share, results[i]["cached"], seconds});
    if (series.empty() || series.back().name != tier) series.push_back({tier, {}, {}});
    series.back().x.push_back(share);
    series.back().y.push_back(seconds);
  }
  out.picture = line_chart(fmt::format("A prompt of {} tokens", length), "% of the prompt known",
                           "seconds to the first token", series);
  return out;
}

}  // namespace oasis::eval
