# Sourced by the scripts beside it: strict mode, the project's root as working directory, messages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
PYTHON=$ROOT/.venv/bin/python

say() { printf '\033[1m== %s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '== %s\n' "$*"; }

# fail MESSAGE: one line that says what to do, exit 1.
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
