#!/usr/bin/env bash
# tools/test.sh fast|all: set up, build, then ctest and pytest. Both always run; either can fail it.
source "$(dirname "$0")/common.sh"

case ${1:-fast} in
  fast) tier=() ;;  # pyproject.toml leaves the slow ones out
  all) tier=(-m 'slow or not slow') ;;
  *) fail "unknown tier '$1'; there are fast and all" ;;
esac
exec </dev/null

tools/setup.sh build test
tools/build.sh

# OpenMPI: tests may run as root (a container) and start more ranks than there are cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

status=0
say "ctest"
ctest --test-dir build --output-on-failure --no-tests=error -j "$(nproc)" || status=1
say "pytest"
"$PYTHON" -m pytest tests "${tier[@]}" || status=1
exit $status
