"""What the faults have in common: they are marked, print their figures, and poll."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture
def figure(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a figure, also when the test passes."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", flush=True)

    return show


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Poll until a check is true; what it raises counts as not yet."""

    def poll(check: Callable[[], Any], seconds: float, pause: float = 0.02) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            problem: object = None
            try:
                if found := check():
                    return found
            except Exception as error:  # noqa: BLE001  (asks of every kind fail meanwhile)
                problem = error
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {problem}"
            time.sleep(pause)

    return poll
