#!/usr/bin/env bash
# Runs every libFuzzer target of build/fuzz for a while, from the seeds in tests/fuzz/TARGET/: fuzz_smoke.sh [SECONDS]
# An input that breaks a target is left in build/fuzz/found/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
found=build/fuzz/found
mkdir -p "$found"

run_one() {
  local target=$1 name corpus
  name=$(basename "$target")
  corpus=$(mktemp -d)
  [[ -d tests/fuzz/$name ]] && cp -r "tests/fuzz/$name/." "$corpus/"
  if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -artifact_prefix="$found/$name-" "$corpus" >"$corpus.log" 2>&1; then
    echo "fuzz: $name: $(grep -oE 'Done [0-9]+ runs in [0-9]+ second' "$corpus.log" || echo 'nothing run')"
  else
    echo "fuzz: $name FAILED; the input is in $found/"
    tail -60 "$corpus.log"
    rm -rf "$corpus" "$corpus.log"
    return 1
  fi
  rm -rf "$corpus" "$corpus.log"
}
export -f run_one
export seconds found

mapfile -t targets < <(find build/fuzz/bin -maxdepth 1 -name '*_fuzz' -type f | sort)
((${#targets[@]} > 0)) || { echo "fuzz: no targets in build/fuzz/bin" >&2; exit 1; }
printf '%s\0' "${targets[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'run_one {}'
