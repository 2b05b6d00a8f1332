// Checks of an option's value, made while the command line is read. CLI11 puts the flag's name before what they say.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <vector>

namespace oasis::app {

CLI::Validator whole_number(int64_t low, int64_t high);
CLI::Validator one_of(std::vector<int64_t> values);
CLI::Validator seed_number();  // 0 .. 2^64-1
// Finite, in [low, high].
CLI::Validator number(double low, double high);
// Finite, in (low, high].
CLI::Validator number_above(double low, double high);
CLI::Validator not_empty();

}  // namespace oasis::app
