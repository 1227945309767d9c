"""What every test shares: how many examples hypothesis tries.

At a desk 50 random ones each time; with `CI=true` 100 that are the same in every run, so that a
failure there is a failure here. Neither has a deadline for one example: machines are shared,
and pytest's timeout catches hangs.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with Spark: its file is the longest by far, and one process runs all of it."""
    items.sort(key=lambda item: item.path.name != "test_spark.py")
