"""The programs of docs/operations.md run as they stand."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_its_programs():
    assert BLOCKS


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_programs_of_the_page_run_as_they_stand(number):
    exec(
        compile(BLOCKS[number], f"operations.md block {number}", "exec", dont_inherit=True), {}
    )
