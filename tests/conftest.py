"""What every test shares: how many examples hypothesis tries.

At a desk 50 random ones each time; with `CI=true` 50 that are the same in every run, so that a
failure there is a failure here: `make fuzz` tries millions on every codec. Neither has a
deadline for one example: machines are shared, and pytest's timeout catches hangs.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with what takes longest, so that no process ends long after the others."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
