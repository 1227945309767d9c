"""Runs Thespian's own suite, as it is installed, on callboard's base instead of Thespian's.

A pytest plugin. The suite's `asys` fixture names Thespian's bases one after the other; here it
names ours. `similar_asys`, which makes the second to sixth system of a test, follows it. What
does not apply stands in `not_applicable.toml`: those tests run too, and one that passes or one
that skips itself without standing there is a failure, so that the list stays true.
"""

import json
import socket
import sys
import time
import tomllib
from pathlib import Path

import pytest
import thespian.test as suite
from thespian.actors import ActorSystem

from callboard.actors import SystemBase

BASE = "callboard"
MODULES = [f"thespian.test.{path.stem}" for path in Path(suite.__file__).parent.glob("*.py")]
HERE = Path(__file__).parent
JOINED_WITHIN = 0.25
"""Seconds that the suite gives systems to find each other, in its own `similar_asys`, too."""

CAPABILITIES = {"Foo Allowed": True, "Cows Allowed": True, "Dogs Allowed": True, "dog": "food"}


def free_port():
    """Return a free port; the suite must know it in advance."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(capabilities, *, leader=None, own_leader=False):
    port = free_port()
    capabilities["Admin Port"] = port
    if own_leader:
        capabilities["Convention Address.IPv4"] = "", port
    elif leader is not None:
        capabilities["Convention Address.IPv4"] = "", leader
    system = ActorSystem(BASE, capabilities, logDefs=False, transientUnique=True)
    system.base_name = BASE
    system.port_num = port
    system.txonly = False
    return system


@pytest.fixture(params=[BASE])
def asys():
    system = start(dict(CAPABILITIES), own_leader=True)
    yield system
    system.shutdown()


def similar_asys(asys, in_convention=True, start_wait=True, capabilities=None):
    system = start(capabilities or {}, leader=asys.port_num if in_convention else None)
    if in_convention and start_wait:
        time.sleep(JOINED_WITHIN)  # as the suite does: no event reports who has joined
    return system


def make_base(system, logDefs=None):  # noqa: N803
    """The base that Thespian finds by name, with the suite's classes as messages."""
    base = SystemBase(system.capabilities, logDefs or False, messages=MODULES)
    system.systemAddress = base.address
    return base


sys.modules[f"thespian.system.{BASE}"].ActorSystemBase = make_base
suite.get_free_admin_port = free_port
suite.asys = asys
suite.similar_asys = similar_asys


def pytest_addoption(parser):
    parser.addoption("--part", default="0/1", help="k/n: run every n-th test, from the k-th on")
    parser.addoption("--counts", help="file for the number of tests of each outcome")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """A fixture of one module has its own list of Thespian's bases; add ours to it."""
    for definitions in metafunc._arg2fixturedefs.values():
        for definition in definitions:
            if definition.params and "multiprocTCPBase" in definition.params:
                definition.params = (BASE,)


def not_applicable():
    """Return the listed tests, without file and parameters, and the reason of each."""
    groups = tomllib.loads((HERE / "not_applicable.toml").read_text())["group"]
    return {test: group["reason"] for group in groups for test in group["tests"]}


def name_of(item):
    return f"{item.path.stem}::" + item.nodeid.partition("::")[2].replace(f"[{BASE}]", "")


def pytest_collection_modifyitems(config, items):
    listed = not_applicable()
    unknown = set(listed) - {name_of(item) for item in items}
    if unknown:
        raise pytest.UsageError(f"listed as not applicable, but not in the suite: {unknown}")
    for item in items:
        if name_of(item) in listed:
            item.add_marker(pytest.mark.xfail(reason=listed[name_of(item)], strict=True))
    part, parts = map(int, config.getoption("part").split("/"))
    config.hook.pytest_deselected(items=[i for n, i in enumerate(items) if n % parts != part])
    items[:] = items[part::parts]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Fail a test that skips itself unless it is listed."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        if name_of(item) in not_applicable():
            report.wasxfail = "skips itself"
        else:
            report.outcome = "failed"
            report.longrepr = f"{name_of(item)} skips itself and is not in not_applicable.toml"
    return report


OUTCOMES = {
    "passed": "passed",
    "failed": "failed",
    "error": "failed",
    "xfailed": "not applicable",
}


def pytest_sessionfinish(session):
    path = session.config.getoption("counts")
    if path:
        seen = session.config.pluginmanager.get_plugin("terminalreporter").stats
        counts = dict.fromkeys(OUTCOMES.values(), 0)
        for outcome, name in OUTCOMES.items():
            counts[name] += len(seen.get(outcome, ()))
        Path(path).write_text(json.dumps(counts))
