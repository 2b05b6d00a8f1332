#!/usr/bin/env bash
# Runs clang-tidy (checks: .clang-tidy) over the host sources in the compile database of a build, those of the tests left
# out: tidy.sh [REGEX [BUILD]]. REGEX chooses files by their path; BUILD is build/release. Warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."
files=${1:-"^$PWD/(src|apps)/.*(?<!_test)(?<!_ref)(?<!_fuzz)\.cc$"}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run-clang-tidy-19 -quiet -p "${2:-build/release}" -j "$(nproc)" -warnings-as-errors='*' "$files" >"$log" 2>&1 && result=0 || result=$?
count=$(grep -cE '^\[ *[0-9]+/[0-9]+\]' "$log" || true)
if ((result != 0)); then
  grep -vE '^\[ *[0-9]+/[0-9]+\]|^[0-9]+ warnings? |^Suppressed |^Use -header-filter' "$log" || true
  echo "tidy: $count files, with findings"
  exit 1
fi
((count > 0)) || { echo "tidy: no file matches $files" >&2; exit 1; }
echo "tidy: $count files, nothing found"
