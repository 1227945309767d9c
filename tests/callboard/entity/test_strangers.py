"""Nodes that have nothing to do with entities are not troubled by those that look for hosts."""

import subprocess
import sys
from pathlib import Path

from callboard import Node
from callboard.errors import AskTimeout, EntityUnavailable
from tests.callboard.entity.journal.carts import Cart

CHILD = """
import sys
from callboard import Node

with Node("stranger") as node:
    node.connect(sys.argv[1])
    print("here", flush=True)
    sys.stdin.read()
    assert "callboard.entity.messages" not in sys.modules
"""


def test_a_node_without_entities_logs_nothing_when_it_is_asked_for_hosts() -> None:
    with Node("seeker") as node:
        node.listen("127.0.0.1", 0)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, node.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        try:
            node.entity(Cart, "k").ask("tea", timeout=0.5).result(10)
        except (AskTimeout, EntityUnavailable):
            pass
        _, told = child.communicate("")

    assert told == ""
    assert child.returncode == 0
