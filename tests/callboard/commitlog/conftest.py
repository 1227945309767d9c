"""Waiting for a condition."""

import time

import pytest


@pytest.fixture
def eventually():
    def poll(check, seconds=10.0):
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, f"not within {seconds:g} s"
            time.sleep(0.002)

    return poll
