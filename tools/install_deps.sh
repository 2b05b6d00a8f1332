#!/usr/bin/env bash
# Installs what is missing of the Debian packages listed in tools/packages/NAME.txt: install_deps.sh NAME...
# A line `a|b` means a, or b where the distribution has no a. Asks no one and touches nothing when all are there. Runs as root, or through sudo.
set -euo pipefail
cd "$(dirname "$0")/packages"

installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

missing=()
for list in "$@"; do
  while read -r package _; do
    [[ -z $package || $package == \#* ]] && continue
    for choice in ${package//|/ }; do
      installed "$choice" && continue 2
    done
    missing+=("$package")
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
for i in "${!missing[@]}"; do
  for choice in ${missing[i]//|/ }; do
    if apt-cache show "$choice" >/dev/null 2>&1; then missing[i]=$choice; break; fi
  done
done
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
