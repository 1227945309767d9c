#!/usr/bin/env bash
# Write requirements/*.txt: exact versions with hashes, for every Python we support on every platform.
# Called by `make lock`; needs the network. Versions that are locked already stay; UPGRADE=1 takes the newest.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
tools=build/lock
[ -x "$tools/bin/uv" ] || "$python" -m pip install --quiet --require-hashes --target "$tools" -r requirements/bootstrap.txt

lock() { # lock NAME ARGUMENT…: compile requirements/NAME.txt; the machine's own pip and uv settings stay out of it
  local name=$1
  shift
  echo "requirements/$name.txt"
  "$tools/bin/uv" --no-config --quiet pip compile --universal --generate-hashes --python-version "${python_version:-3.11}" \
    --custom-compile-command "make lock" ${UPGRADE:+--upgrade} --output-file "requirements/$name.txt" "$@" >/dev/null
}

lock bootstrap requirements/bootstrap.in
lock build requirements/build.in
# The demo publishes by MQTT, and is shown in the browser, too.
lock run pyproject.toml --extra mqtt --extra dashboard -c requirements/build.txt
lock dev pyproject.toml --group dev -c requirements/run.txt
lock docs pyproject.toml --group docs -c requirements/dev.txt
lock spark pyproject.toml --extra spark -c requirements/dev.txt
lock spark-jdk pyproject.toml --extra spark-jdk -c requirements/spark.txt

# The rivals and the tools of a release get environments of their own, so their locks hold nothing of ours.
lock bench --group bench --no-annotate
lock release --group release

# One of them needs a newer Python than ours, and so an environment for itself.
echo "casty>=0.30,<0.31" >build/bench-casty.in
python_version=3.12 lock bench-casty build/bench-casty.in --no-annotate
