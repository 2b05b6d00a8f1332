#!/usr/bin/env bash
# Builds llama.cpp's llama-bench, a peer to measure against, into build/llama.cpp and prints its path. Does nothing where
# it is built already. The source comes with a Python package, so that pip is all the network access that is needed.
#   bench/build_llama_cpp.sh [--jobs N]        PYTHON=python3 by default
set -euo pipefail

version=0.3.36  # of llama-cpp-python; its vendor/llama.cpp is what is built
jobs=2
[[ ${1:-} == --jobs ]] && jobs=$2
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/build/llama.cpp
bench=$folder/build/bin/llama-bench
python=${PYTHON:-python3}

if [[ ! -x $bench ]]; then
  mkdir -p "$folder"
  if [[ ! -d $folder/source ]]; then
    archive=$folder/llama_cpp_python-$version.tar.gz
    [[ -f $archive ]] ||
      "$python" -m pip download --no-binary :all: --no-deps -d "$folder" "llama-cpp-python==$version" >&2
    mkdir -p "$folder/unpacked"
    tar -xzf "$archive" -C "$folder/unpacked" --strip-components=1
    mv "$folder/unpacked/vendor/llama.cpp" "$folder/source"
    rm -rf "$folder/unpacked" "$archive"
  fi
  cmake -S "$folder/source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DBUILD_SHARED_LIBS=OFF >&2
  nice -n 19 cmake --build "$folder/build" --target llama-bench -j "$jobs" >&2
fi
echo "$bench"
