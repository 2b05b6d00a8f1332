#!/usr/bin/env bash
# Prints the text that docs/results.md was measured on: the first 60,000 bytes of four manuals that Debian 12 packages carry.
#   bench/study_text.sh > text.txt
set -euo pipefail
while read -r package file; do
  [[ -r $file ]] || { echo "$file is not there: apt-get install $package" >&2; exit 1; }
  case $file in
    *.gz) zcat "$file" ;;
    *) cat "$file" ;;
  esac | head -c 60000 || true  # head closes the pipe early
done <<'FILES'
x11proto-dev /usr/share/doc/xproto/x11protocol.txt.gz
libslang2 /usr/share/doc/libslang2/slang.txt.gz
libpng16-16 /usr/share/doc/libpng16-16/libpng-manual.txt.gz
perl-modules-5.36 /usr/share/perl/5.36.0/pod/perldiag.pod
FILES
