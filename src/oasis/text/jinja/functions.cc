// Global functions, and the binding of arguments.
#include <time.h>

#include <algorithm>

#include "oasis/text/jinja/builtins.h"

namespace oasis::text::jinja {

namespace {

constexpr std::string_view kFunctions[] = {"dict", "namespace", "raise_exception", "range", "strftime_now"};

Value call_range(Context& context, const Arguments& arguments) {
  constexpr int64_t kMaxRange = 100000;  // as jinja2's sandbox
  const std::vector<Value>& args = arguments.positional;
  if (args.empty() || args.size() > 3 || !arguments.named.empty()) fail("range needs one to three integers");
  const auto at = [&](size_t i) { return integer_argument(args[i], 0, "range's bound"); };
  const int64_t begin = args.size() > 1 ? at(0) : 0, end = args.size() > 1 ? at(1) : at(0);
  const int64_t step = args.size() > 2 ? at(2) : 1;
  if (step == 0) fail("range's step is 0");
  std::vector<Value> items;
  for (__int128 i = begin; step > 0 ? i < end : i > end; i += step) {
    if (items.size() == kMaxRange) fail("range has more than {} numbers", kMaxRange);
    items.push_back(Value::integer(static_cast<int64_t>(i)));
  }
  context.budget.spend(8 * items.size());
  return Value::list(std::move(items));
}

Dict named_values(const Arguments& arguments, std::string_view callee) {
  Dict dict;
  if (arguments.positional.size() > 1) fail("{} takes at most one positional argument", callee);
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is(Kind::kDict)) {
      fail_unsupported("{} of {} is not supported", callee, describe(arguments.positional[0]));
    }
    dict = arguments.positional[0].dict();
  }
  for (const auto& [name, value] : arguments.named) dict.set(MarkedText(name), value);
  return dict;
}

Value call_strftime_now(Context& context, const Arguments& arguments) {
  const std::string& format =
      text_argument(arguments.bind("strftime_now", {"format"})[0], "strftime_now's format").str();
  const time_t now = context.now_unix_seconds ? static_cast<time_t>(*context.now_unix_seconds) : time(nullptr);
  tm parts{};
  if ((context.now_unix_seconds ? gmtime_r(&now, &parts) : localtime_r(&now, &parts)) == nullptr) {
    fail("the time {} is out of range", now);
  }
  if (format.empty()) return Value::string({});
  char buffer[1024];
  const size_t size = strftime(buffer, sizeof buffer, format.c_str(), &parts);
  if (size == 0)
    fail("strftime_now: the format '{}' is not valid or gives more than {} bytes", format.substr(0, 100),
         sizeof buffer);
  return Value::string(MarkedText(std::string(buffer, size)));
}

}  // namespace

std::vector<Value> Arguments::bind(std::string_view callee, std::initializer_list<std::string_view> parameters) const {
  if (positional.size() > parameters.size()) {
    fail("{} takes at most {} arguments, {} given", callee, parameters.size(), positional.size());
  }
  std::vector<Value> values(positional.begin(), positional.end());
  values.resize(parameters.size());
  for (const auto& [name, value] : named) {
    const auto at = std::find(parameters.begin(), parameters.end(), name);
    if (at == parameters.end()) fail("{} has no parameter '{}'", callee, name);
    values[static_cast<size_t>(at - parameters.begin())] = value;
  }
  return values;
}

int64_t integer_argument(const Value& value, int64_t otherwise, std::string_view what) {
  if (value.is(Kind::kUndefined)) return otherwise;
  if (!value.is(Kind::kInt) && !value.is(Kind::kBool)) fail("{} is {}, not an integer", what, describe(value));
  return value.as_int();
}

const MarkedText& text_argument(const Value& value, std::string_view what) {
  if (!value.is(Kind::kString)) fail("{} is {}, not a string", what, describe(value));
  return value.text();
}

bool is_function(std::string_view name) {
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
}

Value call_function(Context& context, std::string_view name, const Arguments& arguments) {
  if (name == "range") return call_range(context, arguments);
  if (name == "strftime_now") return call_strftime_now(context, arguments);
  if (name == "raise_exception") {
    const Value message = arguments.bind(name, {"message"})[0];
    fail("the template rejects the conversation: {}", to_text(message, context.budget).str());
  }
  Dict values = named_values(arguments, name);
  context.budget.spend(64 * values.size());
  if (name == "dict") return Value::dict(std::move(values));
  context.namespaces.push_back({std::move(values)});
  return Value::space(&context.namespaces.back());
}

}  // namespace oasis::text::jinja
