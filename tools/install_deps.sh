#!/usr/bin/env bash
# Installs what is missing of the Debian packages listed in tools/packages/NAME.txt: install_deps.sh NAME...
# Asks no one and touches nothing when all are there. Runs as root, or through sudo.
set -euo pipefail
cd "$(dirname "$0")/packages"

missing=()
for list in "$@"; do
  while read -r package _; do
    [[ -z $package || $package == \#* ]] && continue
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done <"$list.txt"
done

if ((${#missing[@]} == 0)); then
  echo "deps: everything in the lists ($*) is installed"
  exit 0
fi
echo "deps: installing ${missing[*]}"
as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || { echo "deps: not root and no sudo: as root, run: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
