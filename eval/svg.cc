#include "eval/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace oasis::eval {
namespace {

// Told apart in grey as well, by dash and marker.
constexpr const char* kColours[] = {"#1b4f9c", "#c8401f", "#2e7d32", "#7b3fa0",
                                    "#b8860b", "#00838f", "#555555", "#d81b60"};
constexpr const char* kDashes[] = {"", "6 3", "2 2", "8 3 2 3"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string text_at(double x, double y, const std::string& text, const char* anchor = "middle", int size = 12,
                    const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\"{}>{}</text>\n", x, y, anchor,
                     size, more, escaped(text));
}

std::string framed(double width, double height, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n{}</svg>\n",
      width, height, width, height, body);
}

struct Range {
  double low = 0, high = 1, step = 0.2;
};

// A range with round ticks around what is there.
Range range_of(const std::vector<Series>& series, bool x) {
  double low = INFINITY, high = -INFINITY;
  for (const Series& s : series) {
    for (const double v : x ? s.x : s.y) low = std::min(low, v), high = std::max(high, v);
  }
  if (!(low <= high)) return {};
  if (high - low < 1e-9) high = low + std::max(1e-3, std::abs(low) * 0.1);
  const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double m : {5.0, 2.0, 1.0}) {
    if (m * power >= raw) step = m * power;
  }
  return {std::floor(low / step) * step, std::ceil(high / step - 1e-9) * step, step};
}

}  // namespace

std::string line_chart(const std::string& title, const std::string& x_name, const std::string& y_name,
                       const std::vector<Series>& series, const std::vector<std::string>& x_labels) {
  constexpr double kLeft = 64, kTop = 34, kWidth = 460, kHeight = 260;
  const Range xs = range_of(series, true), ys = range_of(series, false);
  const auto at_x = [&](double v) { return kLeft + (v - xs.low) / (xs.high - xs.low) * kWidth; };
  const auto at_y = [&](double v) { return kTop + kHeight - (v - ys.low) / (ys.high - ys.low) * kHeight; };
  std::string out = text_at(kLeft, 20, title, "start", 14);
  for (double v = ys.low; v <= ys.high + ys.step / 2; v += ys.step) {
    out += fmt::format("<path d=\"M{:.1f} {:.1f}h{:.1f}\" stroke=\"#ddd\"/>\n", kLeft, at_y(v), kWidth);
    out += text_at(kLeft - 6, at_y(v) + 4, fmt::format("{:.4g}", std::abs(v) < 1e-12 ? 0 : v), "end", 11);
  }
  if (x_labels.empty()) {
    for (double v = xs.low; v <= xs.high + xs.step / 2; v += xs.step) {
      out += text_at(at_x(v), kTop + kHeight + 16, fmt::format("{:.4g}", std::abs(v) < 1e-12 ? 0 : v), "middle", 11);
    }
  }
  for (size_t i = 0; i < x_labels.size(); ++i) {
    const auto v = static_cast<double>(i);
    if (v >= xs.low && v <= xs.high) out += text_at(at_x(v), kTop + kHeight + 16, x_labels[i], "middle", 11);
  }
  out += fmt::format("<path d=\"M{:.1f} {:.1f}v{:.1f}h{:.1f}\" fill=\"none\" stroke=\"#444\"/>\n", kLeft, kTop, kHeight,
                     kWidth);
  out += text_at(kLeft + kWidth / 2, kTop + kHeight + 36, x_name);
  out += text_at(14, kTop + kHeight / 2, y_name, "middle", 12,
                 fmt::format(" transform=\"rotate(-90 14 {:.0f})\"", kTop + kHeight / 2).c_str());
  for (size_t i = 0; i < series.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    const char* dash = kDashes[i % std::size(kDashes)];
    std::string path;
    for (size_t p = 0; p < series[i].x.size(); ++p) {
      const double x = at_x(series[i].x[p]), y = at_y(series[i].y[p]);
      path += fmt::format("{}{:.1f} {:.1f}", p ? "L" : "M", x, y);
      if (series[i].x.size() <= 40)
        out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
    }
    const double y = kTop + 8 + 18 * static_cast<double>(i), x = kLeft + kWidth + 14;
    const auto stroke =
        fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-dasharray=\"{}\"", colour, dash);
    out += fmt::format("<path d=\"{}\" {}/>\n<path d=\"M{:.1f} {:.1f}h24\" {}/>\n", path, stroke, x, y, stroke);
    out += text_at(x + 30, y + 4, series[i].name, "start", 11);
  }
  size_t longest = 0;
  for (const Series& s : series) longest = std::max(longest, s.name.size());
  return framed(kLeft + kWidth + 52 + 6.2 * static_cast<double>(longest), kTop + kHeight + 48, out);
}

std::string heat_maps(const std::string& title, const std::string& row_name, const std::vector<std::string>& rows,
                      const std::string& column_name, const std::vector<std::string>& columns,
                      const std::vector<HeatPanel>& panels, size_t across) {
  constexpr double kCell = 40, kTall = 26, kLeft = 62, kTop = 60;
  const double wide = kCell * static_cast<double>(columns.size()) + 22;
  const double high = kTall * static_cast<double>(rows.size()) + 52;
  std::string out = text_at(kLeft, 20, title, "start", 14);
  for (size_t p = 0; p < panels.size(); ++p) {
    const double left = kLeft + wide * static_cast<double>(p % across);
    const double top = kTop + high * static_cast<double>(p / across);
    out += text_at(left, top - 8, panels[p].title, "start", 11);
    for (size_t r = 0; r < rows.size(); ++r) {
      const double y = top + kTall * static_cast<double>(r);
      if (p % across == 0) out += text_at(left - 6, y + 17, rows[r], "end", 11);
      for (size_t c = 0; c < columns.size(); ++c) {
        const double v = panels[p].values[r][c], x = left + kCell * static_cast<double>(c);
        const auto shade = [&](int far) { return static_cast<int>(255 - (255 - far) * std::clamp(v, 0.0, 1.0)); };
        out += fmt::format(
            "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{}\" height=\"{}\" fill=\"#{:02x}{:02x}{:02x}\" "
            "stroke=\"#fff\"/>\n",
            x, y, kCell, kTall, shade(27), shade(94), shade(156));
        out += text_at(x + kCell / 2, y + 17, fmt::format("{:.2f}", v), "middle", 10,
                       v > 0.55 ? " style=\"fill:#fff\"" : "");
      }
    }
    const double below = top + kTall * static_cast<double>(rows.size()) + 14;
    for (size_t c = 0; c < columns.size(); ++c) {
      out += text_at(left + kCell * (static_cast<double>(c) + 0.5), below, columns[c], "middle", 10);
    }
  }
  const double lines = std::ceil(static_cast<double>(panels.size()) / static_cast<double>(across));
  const double bottom = kTop + high * lines;
  out += text_at(kLeft, bottom - 14, fmt::format("down: {}; across: {}", row_name, column_name), "start", 11);
  return framed(std::max(kLeft + wide * static_cast<double>(across), 7.5 * static_cast<double>(title.size()) + 80),
                bottom, out);
}

}  // namespace oasis::eval
