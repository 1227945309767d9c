"""The programs of docs/actors.md run as they stand, one after the other."""

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[1] / "docs" / "actors.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_programs_of_the_page_run_as_they_stand():
    namespace: dict[str, Any] = {"__name__": "actors_page"}

    assert len(BLOCKS) == 6
    for number, block in enumerate(BLOCKS, 1):
        exec(compile(block, f"actors.md block {number}", "exec", dont_inherit=True), namespace)
