#!/usr/bin/env bash
# Make .venv and install locked requirements in it. Called by the Makefile:
#
#   scripts/setup.sh venv    the environment itself, empty
#   scripts/setup.sh run     what callboard needs, and callboard itself, used in place
#   scripts/setup.sh dev     besides, what its developers need; docs: what builds the documentation
#   scripts/setup.sh spark   Spark, and Java where it is missing; where they cannot be had, one line says so and all is well
#   scripts/setup.sh beside  the same in the background, by `make .venv/.spark`; ends at once
#   scripts/setup.sh arrived waits until a minute after that began, at most; fails where Spark is not there yet
#
# PYTHON=… names the interpreter; else the newest of those below that works is taken. VENV=… names another environment
# than .venv. Nothing outside this folder is changed. Everything installed is in a lock with hashes, the tools that build
# thespian included.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_REQUIRE_VIRTUALENV=0

fail() {
  echo "callboard: $*" >&2
  exit 1
}

version_of() { # prints 313 for Python 3.13; nothing where the command is missing, broken or too old
  "$1" -c 'import sys; v = sys.version_info; v >= (3, 11) and print(v[0] * 100 + v[1])' 2>/dev/null </dev/null || true
}

find_python() {
  local best='' best_version=0 candidate version
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    version=$(version_of "$candidate")
    if [ "${version:-0}" -gt "$best_version" ]; then
      best=$candidate
      best_version=$version
    fi
  done
  [ -n "$best" ] || fail "needs Python 3.11 or newer; ${PYTHON:-python3} is not. Name one: make PYTHON=/path/to/python3"
  echo "$best"
}

pip_install() { # .venv's own pip; where it has none, that of the interpreter the environment was made with
  if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    "$venv/bin/python" -m pip install -qq "$@"
  else
    "$(find_python)" -m pip --python "$venv/bin/python" install -qq "$@"
  fi
}

make_venv() {
  local python
  python=$(find_python)
  rm -rf "$venv"
  "$python" -m venv "$venv" >/dev/null 2>&1 && return
  rm -rf "$venv"
  "$python" -m pip --version >/dev/null 2>&1 ||
    fail "$python has neither venv nor pip: apt install python3-venv"
  echo "callboard: $python lacks venv (python3-venv); uv makes the environment" >&2
  "$python" -m pip install --quiet --require-hashes --target build/bootstrap -r requirements/bootstrap.txt ||
    fail "$python lacks venv, and uv could not be installed: apt install python3-venv"
  build/bootstrap/bin/uv --no-config --quiet venv --python "$("$python" -c 'import sys; print(sys.executable)')" "$venv"
}

install_locked() { # nothing unlocked is fetched: the locked setuptools builds thespian, which has no wheel
  pip_install --use-pep517 --no-build-isolation --require-hashes -r "requirements/$1.txt"
}

java_version() { # prints 17 for Java 17 of JAVA_HOME or of the path; nothing where there is none
  "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 </dev/null | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

install_spark() { # ends with 3 when Spark cannot be had; what needs it is left out then
  local lock=spark version free_mb
  version=$(java_version)
  [ "${version:-0}" -ge 17 ] || lock=spark-jdk
  free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
  if [ "$free_mb" -lt 3000 ]; then
    echo "callboard: no Spark: it needs 3000 MB of disk to install, $free_mb MB are free" >&2
    return 3
  fi
  echo "callboard: installing requirements/$lock.txt in $venv (once)" >&2
  if ! (install_locked "$lock") 2>build/spark.log; then
    echo "callboard: no Spark: requirements/$lock.txt cannot be installed, see build/spark.log" >&2
    return 3
  fi
}

fetching() { # whether Spark is being fetched in the background
  kill -0 "$(cat build/spark.pid 2>/dev/null || echo none)" 2>/dev/null
}

fetch_beside() { # it goes on when the demo ends, and gives way to whatever else runs
  mkdir -p build
  if ! fetching; then
    unset MAKEFLAGS MAKELEVEL MFLAGS
    BESIDE=1 nohup nice -n 19 make .venv/.spark >build/spark-beside.log 2>&1 </dev/null &
    echo $! >build/spark.pid
  fi
  echo "callboard: Spark is downloaded in the background, see build/spark-beside.log" >&2
}

arrived() { # whether Spark is there, at the latest a minute after its download began
  local began
  began=$(date -r build/spark.pid +%s)
  while fetching && [ $(($(date +%s) - began)) -lt 60 ]; do sleep 1; done
  if [ -e .venv/.spark ]; then return; fi
  echo "callboard: Spark is not there yet; later, make analysis computes the same with it" >&2
  return 1
}

case ${1:?venv, run, dev, docs, spark, beside or arrived} in
  venv)
    echo "callboard: making $venv (once)" >&2
    make_venv
    ;;
  run)
    echo "callboard: installing requirements/run.txt in $venv (once)" >&2
    install_locked build
    install_locked run
    pip_install --no-deps --no-build-isolation --no-index --editable . # callboard itself, used in place
    ;;
  beside)
    fetch_beside
    ;;
  arrived)
    arrived
    ;;
  spark)
    mkdir -p build
    while [ -z "${BESIDE:-}" ] && fetching; do sleep 1; done # two pips at once would damage .venv
    install_spark
    ;;
  *)
    echo "callboard: installing requirements/$1.txt in $venv (once)" >&2
    install_locked "$1"
    ;;
esac
