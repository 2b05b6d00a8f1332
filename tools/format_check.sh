#!/usr/bin/env bash
# Checks the format of every C++ file that git knows (or could add): format_check.sh [--fix]
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- 'src/*' 'apps/*' 'bench/*' 'eval/*' 'tests/*' |
  grep -E '\.(h|cc|cu|cuh)$' | while read -r file; do [[ -f $file ]] && echo "$file"; done)
if [[ ${1:-} == --fix ]]; then
  clang-format-19 -i "${files[@]}"
else
  clang-format-19 --dry-run -Werror "${files[@]}"
fi
echo "format: ${#files[@]} files"
