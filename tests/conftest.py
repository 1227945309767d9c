"""Configuration of all tests, such as the number of examples that hypothesis tries.

At a desk 30 random ones each time; with `CI=true` 30 that are the same in every run, so that a
failure there is a failure here: `make fuzz` tries millions on every codec, and
`make test-all ARGS=--hypothesis-profile=thorough` 500 on all else. None has a deadline for one
example: machines are shared, and pytest's timeout catches hangs.
"""

import atexit
import contextlib
import faulthandler
import gc
import logging
import os
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.costs import Costs
from tests.rewriting import rewrite_share

settings.register_profile("dev", max_examples=30, deadline=None)
settings.register_profile("ci", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


#: Environment of the pytest of examples and projects: callboard's plugin alone, since importing
#: the others takes each process seconds.
QUICK_PYTEST = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "-p callboard.simulation.plugin",
}


@pytest.fixture(scope="session", autouse=True)
def quick_pytest():
    """Spare the pytest of examples and projects plugins of ours."""
    os.environ.update(QUICK_PYTEST)


@pytest.fixture
def pytester(pytester, monkeypatch):
    """Keep that for the pytest of a pytester as well, which begins without the variables."""
    for name, value in QUICK_PYTEST.items():
        monkeypatch.setenv(name, value)
    return pytester


#: Seconds beyond those that pytest-timeout gives a test after which its process is ended.
GRACE = 120.0
_stderr = pytest.StashKey[int]()


def pytest_configure(config):
    """Keep where errors are written: it is captured while a test runs."""
    config.stash[_stderr] = os.dup(2)
    config.pluginmanager.register(Costs(config), "costs")


def pytest_collection(session):
    """Turn the garbage collector off while tests are collected: these objects stay."""
    gc.disable()
    config = session.config
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:  # a run of all files
        files = Path(__file__).parent.rglob("test_*.py")
        rewrite_share(
            config, (file for file in files if not pytest_ignore_collect(file, config))
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Exclude the collected objects from later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # Libraries in C report at the exit what is not freed. Not sooner: pytest looks for garbage
    # several times when it ends, each time among all objects that are not frozen.
    atexit.register(gc.unfreeze)


def pytest_unconfigure(config):
    os.close(config.stash[_stderr])


@contextlib.contextmanager
def _ended(item):
    """Show the stacks of all threads and end the process where a test or its clean-up hangs.

    pytest-timeout raises in the test once: its clean-up may hang then. After a failure it
    limits nothing, and the clean-up of fixtures may hang as well.
    """
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker else item.config.getini("timeout")
    if not limit:  # a suite of others, without our configuration
        yield
        return
    seconds = GRACE + float(limit)
    faulthandler.dump_traceback_later(seconds, file=item.config.stash[_stderr], exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


#: Fixtures that take seconds to start: tests with one of these are slow unless marked `quick`.
SLOW_FIXTURES = {"browser", "spark"}


def pytest_itemcollected(item):
    """Mark tests as slow that have a slow fixture."""
    if not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path, config):
    """Skip files without a selected test: importing them takes seconds in total."""
    marks = config.getoption("markexpr")
    if collection_path.suffix != ".py":
        return (collection_path.name == "faults" and "not faults" in marks) or None
    if "not slow" in marks:
        text = collection_path.read_text()
        is_left_out = "\npytestmark = pytest.mark.slow\n" in text and "mark.quick" not in text
    elif marks.startswith("slow and "):
        text = collection_path.read_text()
        is_left_out = not any(word in text for word in ("slow", *SLOW_FIXTURES))
    else:
        is_left_out = False
    return is_left_out or None


#: Files that take longest, the longest first: each is run by one process.
LONGEST = [
    "test_spark.py",
    "test_demo.py",
    "test_examples.py",
    "test_readers_tell.py",
    "test_doors.py",
    "test_topic_lives.py",
    "test_lives.py",
    "test_pages.py",
    "test_rules.py",
    "test_commands.py",
    "test_search.py",
    "test_fuzz.py",
    "test_replay.py",
    "test_programs.py",
    "test_planted.py",
    "test_pool.py",
    "test_last_words.py",
    "test_real_package.py",
    "test_file_place.py",
    "test_tutorial.py",
    "test_door_lives.py",
    "test_sqlite_damage.py",
    "test_large.py",
    "test_entity_lives.py",
    "test_moves.py",
    "test_plugin.py",
    "test_testing_guide.py",
    "test_node_commands.py",
    "test_mqtt_lives.py",
    "test_tutorial_cluster.py",
    "test_growth.py",
    "test_portions.py",
    "test_mqtt_cluster_lives.py",
    "test_bounds.py",
    "test_outprocess.py",
    "test_mqtt_clients.py",
]


#: Folders whose files are run by one process, which so starts Spark once.
TOGETHER = ("tests/callboard/pipeline/",)


class Scheduling(LoadFileScheduling):
    """Assigns whole files to processes, and whole folders if their tests share a server."""

    def _split_scope(self, nodeid):
        folders = (folder for folder in TOGETHER if nodeid.startswith(folder))
        return next(folders, super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Schedule by files and folders where `--dist loadfile` asks for that."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


#: Tables of a process's open objects, for pages and metrics.
REGISTRIES = [
    ("callboard.commitlog.log", "_WRITTEN"),
    ("callboard.commitlog.following.named", "_OPEN"),
    ("callboard.commitlog.objects.archive", "_OPEN"),
    ("callboard.gateway.spool", "_OPEN"),
]


def _left_open():
    found = [getattr(sys.modules.get(module), name, ()) for module, name in REGISTRIES]
    return [each for one in found for each in (one.values() if isinstance(one, dict) else one)]


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_open():
    """Close the logs that a module leaves open: pages of the next would show them."""
    yield
    if _left_open():
        gc.collect()  # what an error of a test still held is not open
    left = _left_open()
    for each in left:
        with contextlib.suppress(Exception):
            each.close()
    if left:
        warnings.warn(f"left open: {left}", stacklevel=1)


def _logging_of(config):
    """Return how records are told: the level of the root, who hears it, its formatters."""
    root, plugin = logging.getLogger(), config.pluginmanager.get_plugin("logging-plugin")
    hearing = {*root.handlers, plugin.caplog_handler, plugin.report_handler}
    return root.level, [*root.handlers], {each: each.formatter for each in hearing}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Put back how records are told: a command sets a level, a worker of Spark formatters.

    Each test is ended if it hangs; one timer for all its phases costs half of one for each.
    """
    level, handlers, formatters = _logging_of(item.config)
    try:
        with _ended(item):
            return (yield)
    finally:
        root = logging.getLogger()
        root.setLevel(level)
        root.handlers[:] = handlers
        for handler, formatter in formatters.items():
            handler.setFormatter(formatter)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Start with the slowest tests, so that no process ends long after the others."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
