"""The programs of docs/log.md run as they stand, in order, in one namespace."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from callboard.commitlog.log import Sync

PAGE = (Path(__file__).parents[3] / "docs" / "log.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


EXTRAS = {
    "write_columns": find_spec("pyarrow"),
    "open_sql": find_spec("pyarrow") and find_spec("duckdb"),
}


def test_the_programs_of_the_page_run_as_they_stand():
    assert len(BLOCKS) == 6
    namespace = {"__name__": "log"}
    for number, block in enumerate(BLOCKS, 1):
        if any(name in block and not is_there for name, is_there in EXTRAS.items()):
            continue
        exec(compile(block, f"log.md block {number}", "exec", dont_inherit=True), namespace)


def test_the_page_tells_every_mode_of_durability():
    assert re.findall(r'^\| `"(\w+)"`', PAGE, re.MULTILINE) == list(get_args(Sync))
