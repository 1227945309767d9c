# callboard: every target sets up what it needs in .venv, from locks with hashes, and touches nothing outside this folder.
#   PYTHON=/path/to/python3   the interpreter for .venv (default: the newest python3 that works, 3.11 or newer)
#   JOBS=4                    processes of the test suite
#   ARGS="…"                  more arguments for run, test, faults, fuzz, bench and growth; `DISTURB=7 make test
#                             ARGS="-p tests.disturbance"` tests on a machine that is slow now and then

.DEFAULT_GOAL := help
.PHONY: help setup run analysis test test-all test-rest mutants pythons extras release audit thespian faults fuzz simulate search planted check bench growth drawings films docs look lock clean
.DELETE_ON_ERROR:

SEEDS ?= 0:100
JOBS ?= 4
python := .venv/bin/python
suite := -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
quick := quick or not slow
export PYTHON
# Compiled once, in __pycache__: without it each of the hundreds of processes of the suite compiles all of callboard again.
unexport PYTHONDONTWRITEBYTECODE

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: .venv/.dev .venv/.spark ## everything a developer needs: .venv with the locked development tools

# The first picture waits for nothing but pip: where there is no Spark yet, it is downloaded beside the demo. If it is
# there a minute after that began, or earlier, the demo is followed by the analysis with Spark.
run: .venv/.run ## start the demo: four nodes, one is killed, the system heals
	@rm -rf build/flights; export CALLBOARD_FLIGHTS=build/flights; \
	  if $(MAKE) --question .venv/.spark 2>/dev/null; then exec $(python) -m callboard demo $(ARGS); fi; \
	  scripts/setup.sh beside; CALLBOARD_SPARK=awaited $(python) -m callboard demo $(ARGS) || exit; \
	  if [ -d build/flights ] && scripts/setup.sh arrived; then $(MAKE) --no-print-directory analysis; fi

analysis: .venv/.spark ## compute what the demo found in its flights on Spark, too, and compare
	@$(python) -m callboard.demo.analysis build/flights

# Times are those of two quiet cores.
test: .venv/.dev .venv/.spark ## test the rules of every package and one way through each adapter (about 3 minutes)
	@$(python) $(suite) -m "not faults and ($(quick))" $(ARGS)

test-all: .venv/.dev .venv/.spark ## run all tests, as before a change is merged (about 9 minutes)
	@$(python) $(suite) $(ARGS)

test-rest: .venv/.dev .venv/.spark ## run the tests that make test leaves out (about 6 minutes)
	@$(python) $(suite) -m "slow and not quick and not faults" $(ARGS)

mutants: .venv/.dev ## plant a bug in each package, and see whether make test finds it (ARGS="--seed 7 --package basp")
	@$(python) -m scripts.mutants $(ARGS)

pythons: .venv/.dev ## run the unit tests that start no process on every other Python that is here
	@scripts/pythons.sh

extras: .venv/.dev ## install each extra alone into an empty environment, and run its page there (ARGS="sql --python python3.13")
	@$(python) -m scripts.extras $(ARGS)

release: .venv/.dev ## build wheel and sdist twice, check them, install them on every Python that is here (ARGS="--python 3.13")
	@$(python) -m scripts.release $(ARGS)

audit: .venv/.dev ## look up known vulnerabilities of the locked packages; needs pypi.org
	@$(python) -m scripts.release --audit

thespian: .venv/.dev ## run Thespian's own suite on callboard's base
	@$(python) -m tests.interop.thespian_suite $(ARGS)

faults: .venv/.dev .venv/.spark ## kill, freeze, cut off and overload real node processes
	@$(python) -m pytest -m faults -n 2 tests/faults $(ARGS)

fuzz: .venv/.dev ## feed damaged frames to everything that reads them (ARGS="--frames 1000000 --record")
	@$(python) -m tests.fuzz $(ARGS)

simulate: .venv/.dev ## live random lives of simulated clusters (SEEDS=0:1000 ARGS="--jobs 2 --record", --life topics|channels|stores)
	@$(python) -m tests.simulation --seeds $(SEEDS) $(ARGS)

search: .venv/.dev ## visit every state of small clusters, in any order of events (ARGS=--record writes it to the docs)
	@$(python) -m tests.search $(ARGS)

planted: .venv/.dev ## plant bugs in programs, and look how soon the test kit finds them (ARGS="--starts 1 'lost update'")
	@$(python) -m tests.planted $(ARGS)

check: .venv/.dev ## format, lint, types, the rules of who may import whom, and the limits of the structure
	@$(python) -m ruff format --check
	@$(python) -m ruff check
	@$(python) -m mypy
	@.venv/bin/lint-imports
	@$(python) -m scripts.structure

bench: .venv/.run .venv/.spark ## measure callboard and its rivals in one run (ARGS="local_ask --quick" for a part)
	@$(python) -m benchmarks $(ARGS)

growth: .venv/.run ## measure how cost grows, to 1,000,000 actors, and draw it (ARGS="actors --most 10000" for a part)
	@$(python) -m benchmarks.growth $(ARGS)

drawings: .venv/.run ## write the drawings and charts of the docs again, from scripts/drawings and docs/benchmarks/*.json
	@$(python) -m scripts.drawings $(ARGS)

films: .venv/.dev ## run the programs that the docs show in a terminal, and record them anew (ARGS=demo for one)
	@$(python) -m scripts.films $(ARGS)
	@$(python) -m scripts.drawings

docs: .venv/.docs ## build the documentation in docs/_build, and follow every link in it
	@$(python) -m sphinx -W --keep-going --quiet -b html docs docs/_build
	@$(python) -m scripts.links docs/_build
	@$(python) -m scripts.docs_search docs/_build

look: docs ## look at every page in a browser, on a phone and a desk, in light and dark (ARGS=FOLDER for pictures)
	@$(python) -m scripts.look docs/_build $(ARGS)

lock: .venv/.run ## write requirements/*.txt again (UPGRADE=1 takes the newest versions)
	@scripts/lock.sh

clean: ## remove .venv, caches and everything that was built
	@rm -rf .venv build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	@find . -name __pycache__ -prune -exec rm -rf {} +

# Set-up runs again only when a lock or pyproject.toml changed, or when the interpreter of .venv is gone.
.venv/bin/python:
	@scripts/setup.sh venv

.venv/.run: requirements/build.txt requirements/run.txt pyproject.toml .venv/bin/python
	@scripts/setup.sh run
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.run
	@scripts/setup.sh dev
	@touch $@

# Where Spark cannot be had all else works; the next call tries again.
.venv/.spark: requirements/spark.txt requirements/spark-jdk.txt .venv/.run
	@code=0; scripts/setup.sh spark || code=$$?; case $$code in 0) touch $@ ;; 3) ;; *) exit $$code ;; esac

.venv/.docs: requirements/docs.txt .venv/.dev
	@scripts/setup.sh docs
	@touch $@
