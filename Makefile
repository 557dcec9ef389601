# Thin on purpose: each target calls one script in tools/. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help quickstart setup build test test-all bench format lint

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

quickstart:  ## train a real model on real text under a memory budget, from nothing
	@tools/quickstart.sh

setup:  ## install what is missing: apt packages, and a .venv with pinned Python packages
	@tools/setup.sh build test

build:  ## build/haversack and its tests
	@tools/setup.sh build
	@tools/build.sh

test:  ## set up, build, and run the fast tests: ctest, then pytest
	@tools/test.sh fast

test-all:  ## the slow tests too
	@tools/test.sh all

bench:  ## kernel benchmarks, then Haversack against PyTorch
	@tools/bench.sh

format:  ## rewrite C++ and Python in the project's format
	@tools/format.sh

lint:  ## check formats, ruff and clang-tidy; changes nothing
	@tools/lint.sh
