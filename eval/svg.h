// Small pictures for print: line charts, bars, heat maps, as SVG.
#pragma once

#include <string>
#include <vector>

namespace oasis::eval {

struct Series {
  std::string name;
  std::vector<double> x, y;
};

// `x_labels`: names of x = 0, 1, ...; empty: numbers.
std::string line_chart(const std::string& title, const std::string& x_name, const std::string& y_name,
                       const std::vector<Series>& series, const std::vector<std::string>& x_labels = {});

struct HeatPanel {
  std::string title;
  std::vector<std::vector<double>> values;  // [row][column], 0 .. 1
};
// Panels side by side, `across` in a line, that share their row and column names.
std::string heat_maps(const std::string& title, const std::string& row_name, const std::vector<std::string>& rows,
                      const std::string& column_name, const std::vector<std::string>& columns,
                      const std::vector<HeatPanel>& panels, size_t across);

}  // namespace oasis::eval
