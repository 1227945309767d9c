"""The programs of docs/security.md run as they stand, and its table tells the defaults."""

import re
from pathlib import Path

import pytest

from callboard import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_its_programs():
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_programs_of_the_page_run_as_they_stand(number, capsys):
    exec(compile(BLOCKS[number], f"security.md block {number}", "exec", dont_inherit=True), {})

    said = re.search(r"print\(error\)  # (.*)", BLOCKS[number])
    if said:
        parts = [part.strip() for part in said[1].split("…") if part.strip()]
        printed = capsys.readouterr().out
        assert all(part in printed for part in parts), printed


def test_the_table_tells_the_defaults():
    limits = Limits()
    told = dict(re.findall(r"^\| `Limits\.(\w+)`[^|]*\| ([^|]+) \|", PAGE, re.MULTILINE))

    assert told == {
        "links": f"{limits.links:,}",
        "handshakes": f"{limits.handshakes:,}",
        "links_per_address": f"{limits.links_per_address:,}",
        "handshakes_per_address": f"{limits.handshakes_per_address:,}",
        "messages_per_second": "none",
        "bytes_per_second": "none",
        "strangers_per_second": f"{limits.strangers_per_second:,}",
        "payload": f"{limits.payload // 2**20} MiB",
        "proxies": f"{limits.proxies:,}",
    }
