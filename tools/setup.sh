#!/usr/bin/env bash
# tools/setup.sh GROUP...: install what is missing for each group and nothing else.
#   build  apt packages and the torch wheel: enough for `make build`
#   test   the Python packages that convert models and judge results (needs build)
#   lint   clang-format and clang-tidy
# A run that finds all in place takes well under a second.
source "$(dirname "$0")/common.sh"

# install_apt FILE: the packages it lists, where dpkg does not know them as installed.
install_apt() {
  local list=$1 missing package as_root=()
  command -v dpkg-query >/dev/null || {
    say "no dpkg here: install the equivalents of $(tr '\n' ' ' <"$list")by hand"
    return
  }
  missing=$(comm -13 <(xargs dpkg-query -W -f='${Status} ${Package}\n' <"$list" 2>/dev/null |
    sed -n 's/^install ok installed //p' | sort -u) <(sort "$list"))
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086  # one word a package
  set -- $missing
  say "apt packages: $*"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "as root, run: apt-get install $*"
    as_root=(sudo)
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  "${as_root[@]}" apt-get -qq update </dev/null || say "apt-get update failed; trying the lists that are here"
  "${as_root[@]}" apt-get -qq install --no-install-recommends -y "$@" </dev/null ||
    fail "apt-get could not install $*: see the message above, install them, and run this again"
}

make_venv() {
  [ -x "$PYTHON" ] && return
  command -v python3 >/dev/null || fail "python3 is missing: install Python 3.11"
  python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' ||
    fail "$(python3 -V) is named python3; the pinned packages need 3.11 to 3.14"
  say "virtual environment in .venv"
  python3 -m venv .venv || fail "python3 -m venv failed: install python3-venv and run this again"
}

# once NAME FILE COMMAND...: run COMMAND unless it succeeded before with this FILE.
once() {
  local stamp=.venv/.installed-$1 file=$2 want
  shift 2
  want=$(sha256sum <"$file")
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && return
  "$@" "$file"
  printf '%s\n' "$want" >"$stamp"
}

pip_install() {
  "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@" </dev/null ||
    fail "pip could not install $*: see the message above, and run this again"
}

libtorch_loads() {
  "$PYTHON" - <<'PY' 2>/dev/null
import ctypes
import importlib.util
import pathlib

folder = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0])
ctypes.CDLL(str(folder / "lib" / "libtorch_cpu.so"))
PY
}

install_torch() {
  say "torch wheel, for LibTorch"
  pip_install --no-deps -r "$1"
  libtorch_loads && return
  say "this build of LibTorch needs libraries of its own: installing them"
  pip_install -r "$1"
  libtorch_loads || fail "libtorch_cpu.so does not load: delete .venv and run this again"
}

# The file pins the whole closure, so that nothing else (torch least of all) moves.
install_judges() {
  say "Python packages for conversion and tests"
  pip_install --no-deps -r "$1"
}

for group in "${@:-build}"; do
  case $group in
    build)
      install_apt tools/apt-build.txt
      make_venv
      once torch tools/requirements-build.txt install_torch
      ;;
    test) once judges tools/requirements-test.txt install_judges ;;
    lint) install_apt tools/apt-lint.txt ;;
    *) fail "unknown group '$group'; there are build, test and lint" ;;
  esac
done
