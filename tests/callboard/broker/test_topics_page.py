"""The programs of docs/topics.md run as they stand, each after those before it."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "topics.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_its_programs():
    assert len(BLOCKS) == 6


@pytest.mark.parametrize("count", range(1, len(BLOCKS) + 1))
def test_the_programs_of_the_page_run_as_they_stand(count):
    namespace = {"__name__": "topics"}

    for number, block in enumerate(BLOCKS[:count], 1):
        exec(compile(block, f"topics.md block {number}", "exec", dont_inherit=True), namespace)
