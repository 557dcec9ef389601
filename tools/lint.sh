#!/usr/bin/env bash
# tools/lint.sh [FILE.cc...]: formats, ruff, and clang-tidy over the named or all sources.
source "$(dirname "$0")/common.sh"

tools/setup.sh build test lint
status=0
sources() { git ls-files -z --cached --others --exclude-standard "$@"; }

say "clang-format"
sources '*.cc' '*.h' | xargs -0 -r clang-format --dry-run -Werror || status=1
say "ruff"
"$PYTHON" -m ruff format --quiet --check . || status=1
"$PYTHON" -m ruff check --quiet . || status=1
say "clang-tidy"
tools/build.sh build.ninja >/dev/null
if [ $# -gt 0 ]; then printf '%s\0' "$@"; else sources 'src/*.cc'; fi |
  xargs -0 -r -n 1 -P "$(nproc)" clang-tidy -p build --quiet || status=1
exit $status
