"""How many processes live runs at a time."""

import multiprocessing
import os

import pytest

from callboard.simulation.runs.tries import processors


def processors_of_two() -> int:
    """Return how many processes may live runs where there are two processors."""
    os.cpu_count = lambda: 2
    return processors()


@pytest.mark.slow
def test_a_worker_of_a_pool_lives_runs_alone(monkeypatch):
    """It is a daemon: `start` of a child raises there."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(processors_of_two)

    assert found == 1


@pytest.mark.slow
def test_a_process_of_its_own_has_all_processors(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=answer_processors, args=(answers,))

    child.start()
    found = answers.get()
    child.join()

    assert found == 2


def answer_processors(answers) -> None:
    """Send how many processes may live runs where there are two processors."""
    answers.put(processors_of_two())
