#!/usr/bin/env bash
# Run the unit tests that start no process on every other Python that is here: python3.11 and later on the path, and
# those of pyenv. Called by `make pythons`. Each gets an environment in build/pythons, from the same locks as .venv.
set -uo pipefail
cd "$(dirname "$0")/.."

# Two minutes on two quiet cores, with the set-up: what stands below the doors, but for what is pure computing.
rooms=(tests/actors tests/basp/test_*.py tests/proxies tests/callboard/{cbor,channel,configuration,topics,model,store} tests/callboard/zeek/test_*.py)
run='import sys; print("%d.%d" % sys.version_info[:2])'
ours=$(.venv/bin/python -c "$run")

find_python() { # prints the newest interpreter of a version that works
  local candidate
  for candidate in "python$1" $(ls -1dr "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python 2>/dev/null | sort -Vr); do
    [ "$("$candidate" -c "$run" 2>/dev/null </dev/null)" = "$1" ] && command -v "$candidate" && return
  done
}

set_up() { # once; again when a lock changed
  [ "$VENV/.ready" -nt requirements/dev.txt ] && [ "$VENV/.ready" -nt requirements/run.txt ] &&
    [ "$VENV/.ready" -nt pyproject.toml ] && return
  scripts/setup.sh venv && scripts/setup.sh run && scripts/setup.sh dev && touch "$VENV/.ready"
}

# Files that start processes depend on the system more than on the interpreter, and take most of the time.
mapfile -t files < <(grep -rLE --include='test_*.py' 'subprocess|Popen|workers\(|pytester|tests.processes' "${rooms[@]}" | sort)
check() { # check ARGUMENT…: run pytest, and print the end of what it says
  CI='' "$VENV/bin/python" -m pytest -q -o cache_dir="$VENV/.pytest_cache" "$@" </dev/null | tail -n 25
  return "${PIPESTATUS[0]}"
}

# What seeds of simulations do has to be the same on all of them.
PYTHONHASHSEED=1 .venv/bin/python -m tests.simulation.replayed >build/replayed.json 2>/dev/null

failed=()
found=0
for version in 3.11 3.12 3.13 3.14; do
  [ "$version" != "$ours" ] || continue
  python=$(find_python "$version")
  [ -n "$python" ] || continue
  found=1
  export VENV=build/pythons/$version PYTHON=$python
  started=$SECONDS
  if set_up; then
    ready=$SECONDS
    code=0
    check -n "${JOBS:-3}" --dist loadfile -m "quick or not slow" "${files[@]}" || {
      echo "again, alone, what failed beside the others:"
      check --last-failed --last-failed-no-failures=none || code=$?
    }
    "$VENV/bin/python" -m tests.simulation.replayed build/replayed.json 2>/dev/null || code=$?
    echo "$("$python" -VV | head -n 1): set up in $((ready - started)) s, tested in $((SECONDS - ready)) s"
    [ "$code" -eq 0 ] || failed+=("$version")
  else
    failed+=("$version, which could not be set up")
  fi
done
[ "$found" -eq 1 ] || echo "no other Python than $ours is here: nothing to test on"
[ ${#failed[@]} -eq 0 ] || { echo "failed on ${failed[*]}"; exit 1; }
