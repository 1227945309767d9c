"""What every test shares: how many examples hypothesis tries.

At a desk 50 random ones each time; with `CI=true` 50 that are the same in every run, so that a
failure there is a failure here: `make fuzz` tries millions on every codec. Neither has a
deadline for one example: machines are shared, and pytest's timeout catches hangs.
"""

import contextlib
import os
import sys
import warnings

import pytest
from hypothesis import settings

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


@pytest.fixture(scope="session", autouse=True)
def quick_pytest():
    """Spare the pytest of examples and projects plugins of ours: 3 s of computing each."""
    spared = "-p no:schemathesis -p no:hypothesispytest -p no:anyio"
    os.environ["PYTEST_ADDOPTS"] = spared
    return spared


#: Files that take longest, the longest first: each is run by one process.
LONGEST = [
    "test_spark.py",
    "test_demo.py",
    "test_examples.py",
    "test_lives.py",
    "test_mqtt_lives.py",
    "test_rules.py",
    "test_topic_lives.py",
    "test_mqtt_cluster_lives.py",
    "test_large.py",
    "test_commands.py",
    "test_outprocess.py",
    "test_mqtt_clients.py",
    "test_pool.py",
    "test_programs.py",
    "test_fuzz.py",
    "test_growth.py",
    "test_tutorial.py",
    "test_plugin.py",
]


#: Where a process remembers what it has open, for pages and metrics.
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
    left = _left_open()
    for each in left:
        with contextlib.suppress(Exception):
            each.close()
    if left:
        warnings.warn(f"left open: {left}", stacklevel=1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with what takes longest, so that no process ends long after the others."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
