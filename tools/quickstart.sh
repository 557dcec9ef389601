#!/usr/bin/env bash
# tools/quickstart.sh: from a fresh clone to a trained model. Everything is reused when run again; delete
# runs/quickstart to train anew. STEPS, MEMORY, BATCH, SEQ and LR can be set in the environment.
source "$(dirname "$0")/common.sh"

STEPS=${STEPS:-20} MEMORY=${MEMORY:-3GiB} BATCH=${BATCH:-4} SEQ=${SEQ:-512} LR=${LR:-1e-4}
model=data/smollm2-135m
run=runs/quickstart
prompt='And it came to pass'

tools/setup.sh build test
say "build"
tools/build.sh haversack
tools/fetch_model.sh
tools/fetch_text.sh

mkdir -p "$run"
settings="steps $STEPS, memory $MEMORY, batch $BATCH, seq $SEQ, lr $LR"
if [ -f "$run/settings" ] && [ "$(cat "$run/settings")" != "$settings" ]; then
  fail "$run holds a run with $(cat "$run/settings"), you ask for $settings: delete $run and run this again"
fi
printf '%s\n' "$settings" >"$run/settings"

# A part of the held-out book, so that measuring it takes seconds.
heldout=$run/heldout.txt
head -n 150 data/kjv/valid.txt >"$heldout"

# evaluate MODEL FILE: the held-out loss as one JSON line, once.
evaluate() {
  [ -s "$2" ] && return
  build/haversack eval --model "$1" --data "$heldout" --seq "$SEQ" </dev/null >"$2.partial"
  mv "$2.partial" "$2"
}

say "held-out loss of the model as fetched"
evaluate "$model" "$run/before.json"

if [ -f "$run/finished" ]; then
  say "already trained: $run/model"
else
  say "train: $settings"
  resume=()
  # A run that was stopped goes on from its last checkpoint.
  for checkpoint in "$run"/checkpoints/*/DONE; do
    [ -f "$checkpoint" ] && resume=(--resume)
  done
  build/haversack train --model "$model" --data data/kjv/train.txt --valid "$heldout" \
    --memory "$MEMORY" --batch "$BATCH" --seq "$SEQ" --steps "$STEPS" --lr "$LR" \
    --out "$run" --metrics "$run/metrics.jsonl" "${resume[@]}" </dev/null
  rm -f "$run/after.json"
  touch "$run/finished"
fi

say "held-out loss of the trained model"
evaluate "$run/model" "$run/after.json"

say "sample"
build/haversack generate --model "$run/model" --prompt "$prompt" --max-new-tokens 60 \
  --temperature 0.7 --seed 1 </dev/null | tee "$run/sample.txt"

"$PYTHON" tools/quickstart_summary.py "$run" --memory "$MEMORY"
