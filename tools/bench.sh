#!/usr/bin/env bash
# tools/bench.sh: every Google Benchmark binary, one step op by op, then Haversack against PyTorch.
# What bench/compare.py compares goes to runs/bench.json.
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
mkdir -p runs
say "One training step, op by op"
build/haversack bench --model data/smollm2-135m --batch 4 --micro-batch 4 --seq 512 --plan keep \
  --memory 4000MiB --json >runs/step.json
say "Haversack against PyTorch"
"$PYTHON" bench/vs_pytorch.py --json runs/vs_pytorch.json
"$PYTHON" - <<'PYTHON'
import json
from pathlib import Path

parts = {name: json.loads(Path(f"runs/{name}.json").read_text()) for name in ("step", "vs_pytorch")}
Path("runs/bench.json").write_text(json.dumps(parts, indent=2) + "\n")
PYTHON
say "written to runs/bench.json; bench/compare.py OLD.json NEW.json says what became worse"
