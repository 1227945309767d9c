"""docs/security.md tells the defaults, and its answers are shown by tests that exist."""

import re
from pathlib import Path

from callboard import Limits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


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


def test_every_answer_of_the_threat_model_is_shown_by_tests_that_exist():
    model = PAGE.partition("## Who is trusted for what")[2].partition("\n## ")[0]
    rows = [line for line in model.splitlines() if line.startswith("| ")][1:]
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    there = set(re.findall(r"^(?:async )?def (test_\w+)", "\n".join(texts), re.MULTILINE))

    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert not set(named) - there
    for who in ("stranger", "leaf", "off the path", "on the path", "MQTT client", "folder"):
        assert any(who in row for row in rows)
    for who in ("terminal", "Other users", "Workers"):
        assert any(who in row for row in rows)
