# Everyday commands. `make` alone lists them; each says what it does while it does it. The build itself is CMake's
# (CMakePresets.json): these are short names for its presets and for the scripts in tools/.
.DEFAULT_GOAL := help
.PHONY: help deps ci-deps model build test demo asan tsan fuzz format lint check-ladder clean

JOBS ?= $(shell nproc)
# A regular expression: which tests `make test`, `make asan` and `make tsan` run (make test TESTS='^kv\.').
TESTS ?= .
# Paths in the compiler's cache are relative, so that another clone hits it too.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := true
export CTEST_OUTPUT_ON_FAILURE := 1
export ASAN_OPTIONS := detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS := print_stacktrace=1
export TSAN_OPTIONS := second_deadlock_stack=1:halt_on_error=1

# Rooms whose code runs on several threads at once: what the thread sanitizer is for.
RACY := device kv lookahead engine serve
RACY_TESTS := $(foreach room,$(RACY),$(if $(shell find src/oasis/$(room) -name '*_test.cc' -print -quit),$(room)_test)) \
  hazards_test exact_test
FUZZERS := $(basename $(notdir $(shell find src -name '*_fuzz.cc')))

help:           ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+): .*## */  make \1|/' | column -t -s '|'

deps:           ## install the Debian or Ubuntu packages that are missing (as root or through sudo)
	@tools/install_deps.sh build

ci-deps:        ## the same for the checks: clang, clang-format, clang-tidy, all of version 19
	@tools/install_deps.sh build ci

model:          ## put the small model (SmolLM2-135M, 98 MB) under models/
	@python3 tools/get_model.py

build: deps     ## build everything, optimised: build/release/bin/
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

test: model build  ## build, fetch the model, run all tests
	ctest --repeat until-pass:2 --test-dir build/release -j $(JOBS) -R '$(TESTS)'

demo: model build  ## show what it does on the small model, on this machine
	python3 tools/demo.py

# The tests of the command line and of the server over HTTP start the program many times, those of slow tiers measure time:
# not under a sanitizer.
asan: model deps   ## all tests but the command line's under the address and undefined-behaviour sanitizers
	cmake --preset asan
	cmake --build --preset asan -j $(JOBS)
	ctest --repeat until-pass:2 --test-dir build/asan -j $(JOBS) -R '$(TESTS)' -E '^tests\.(cli|serve|page|AsyncTier)'

tsan: model deps   ## the tests that can race under the thread sanitizer
	cmake --preset tsan
	cmake --build --preset tsan -j $(JOBS) --target $(RACY_TESTS)
	ctest --repeat until-pass:2 --test-dir build/tsan -j $(JOBS) -R '^($(subst $() $(),|,$(RACY) tests))\.' -E '^tests\.(cli|serve|serve_fuzz|page)$$'

fuzz: ci-deps   ## build the fuzz targets and run each for a while (FUZZ_SECONDS=20)
	cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS) --target $(FUZZERS)
	tools/fuzz_smoke.sh $(or $(FUZZ_SECONDS),20)

format:         ## format all C++ files in place
	tools/format_check.sh --fix

lint: ci-deps build  ## format check and clang-tidy
	tools/format_check.sh
	tools/tidy.sh

check-ladder:   ## check that each folder includes only what stands above it
	python3 tools/check_ladder.py

clean:          ## remove build/ (the model stays)
	rm -rf build
