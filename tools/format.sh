#!/usr/bin/env bash
# tools/format.sh: rewrite C++ and Python in the project's format.
source "$(dirname "$0")/common.sh"

tools/setup.sh build test lint
git ls-files -z --cached --others --exclude-standard '*.cc' '*.h' | xargs -0 -r clang-format -i
"$PYTHON" -m ruff format --quiet .
"$PYTHON" -m ruff check --quiet --fix .
