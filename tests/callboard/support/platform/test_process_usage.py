"""Figures of the process."""

import os
import sys
import threading

import pytest

from callboard.support.platform.process_usage import (
    REUSED_SECONDS,
    ProcessUsage,
    read_figures,
)

ON_LINUX = sys.platform == "linux"


@pytest.mark.skipif(not ON_LINUX, reason="the other systems offer fewer figures")
def test_memory_threads_and_descriptors_are_those_of_this_process():
    before = read_figures()
    block = b"x" * 50_000_000
    pipe = os.pipe()
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    try:
        after = read_figures()
    finally:
        gate.set()
        thread.join()
        for end in pipe:
            os.close(end)

    assert after["resident_bytes"] - before["resident_bytes"] > 0.5 * len(block)
    assert after["descriptors"] - before["descriptors"] == 2
    assert after["threads"] - before["threads"] == 1
    assert after["descriptors_max"] >= after["descriptors"]


def test_processor_time_and_collections_grow():
    import gc

    before = read_figures()
    gc.collect()

    after = read_figures()
    assert after["gc_collections"] > before["gc_collections"]
    assert after["cpu_seconds"] > before["cpu_seconds"]


def test_figures_are_read_again_after_some_seconds():
    now = [100.0]
    usage = ProcessUsage(lambda: now[0])
    first = usage.figures()
    while read_figures()["cpu_seconds"] == first["cpu_seconds"]:
        pass

    assert usage.figures() == first
    now[0] += REUSED_SECONDS
    assert usage.figures()["cpu_seconds"] > first["cpu_seconds"]
