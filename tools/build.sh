#!/usr/bin/env bash
# tools/build.sh [TARGET...]: configure once, then build everything or the named targets.
source "$(dirname "$0")/common.sh"

# Clones of the same tree share ccache's results.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1

mkdir -p build
[ -f build/build.ninja ] || cmake -G Ninja -B build >build/configure.log 2>&1 || {
  cat build/configure.log >&2
  fail "cmake could not configure: see above"
}
ninja -C build "$@"
