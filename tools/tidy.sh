#!/usr/bin/env bash
# Runs clang-tidy (checks: .clang-tidy) over the host sources in the compile database of build/release: tidy.sh [REGEX]
# REGEX chooses files by their path. Warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."
run-clang-tidy-19 -quiet -p build/release -j "$(nproc)" -warnings-as-errors='*' "${1:-$PWD/(src|apps|bench|tests)/.*\.cc$}" \
  2> >(grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter|^\[|^$' >&2 || true)
