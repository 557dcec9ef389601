#!/usr/bin/env bash
# tools/bench.sh: every Google Benchmark binary, then Haversack against PyTorch.
source "$(dirname "$0")/common.sh"

tools/setup.sh build test
tools/build.sh
for benchmark in build/*_benchmark; do
  [ -x "$benchmark" ] || continue
  say "$(basename "$benchmark")"
  "$benchmark"
done
tools/fetch_model.sh
tools/fetch_text.sh
say "Haversack against PyTorch"
"$PYTHON" bench/vs_pytorch.py
