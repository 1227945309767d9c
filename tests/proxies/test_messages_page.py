"""The program of docs/messages.md runs as it stands."""

import re
from pathlib import Path

import pytest

from basp.registry import DEFAULT_REGISTRY

PAGE = (Path(__file__).parents[2] / "docs" / "messages.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _forget_the_types_of_the_page():
    """Other pages have a shop too."""
    known = [
        (table, dict(table))
        for table in (
            DEFAULT_REGISTRY.by_name,
            DEFAULT_REGISTRY.by_class,
            DEFAULT_REGISTRY.flat,
        )
    ]
    yield
    for table, before in known:
        table.clear()
        table.update(before)


def test_the_program_of_the_page_runs_as_it_stands():
    (block,) = BLOCKS

    exec(
        compile(block, "messages.md", "exec", dont_inherit=True), {"__name__": "messages_page"}
    )
