"""The table of docs/security.md tells the defaults."""

import re
from pathlib import Path

from callboard import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


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
        "items": f"{limits.items:,}",
        "proxies": f"{limits.proxies:,}",
    }
