"""What `deploy/` has for Prometheus and Grafana names series that a live `/metrics` has."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from callboard import Actor, Node, handler
from callboard.operation.health import HealthServer
from tests.callboard.entity.journal.carts import Cart
from tests.polling import eventually

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "callboard.rules.yaml"
BOARD = DEPLOY / "grafana" / "callboard.json"


class Echo(Actor):
    @handler
    def text(self, message: str) -> str:
        sum(range(500_000))  # so that samples of its time are taken
        return message


@pytest.fixture(scope="module")
def series():
    """The names of the series that two linked nodes have, each with its labels."""
    with Node("a") as node, Node("b") as other, HealthServer(node) as health:
        node.listen("127.0.0.1", 0)
        other.connect(node.address)
        eventually(node.nodes)
        echo = other.spawn(Echo)
        local = node.spawn(Echo)
        node.host(Cart)

        def read():
            node.ref(str(echo)).ask("x").result(10)
            local.ask("x").result(10)
            with urllib.request.urlopen(f"{health.url}/metrics") as answer:
                text = answer.read().decode()
            found = {}
            for name, labels in re.findall(r"^(\w+)(?:\{([^}]*)\})? ", text, re.MULTILINE):
                found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
            return found if "callboard_handler_seconds_total" in found else None

        yield eventually(read)


def expressions():
    rules = re.findall(r"^ +expr: (.+)$", RULES.read_text(), re.MULTILINE)
    board = json.loads(BOARD.read_text())
    panels = [target["expr"] for each in board["panels"] for target in each["targets"]]
    return [*rules, *panels, *(each["query"] for each in board["templating"]["list"])]


def test_each_expression_names_series_that_a_node_has(series):
    for expression in expressions():
        for name in re.findall(r"callboard_\w+", expression):
            assert name in series, expression
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            known = {"instance"}.union(
                *(series[n] for n in re.findall(r"callboard_\w+", expression))
            )
            assert {each.strip() for each in labels.split(",")} <= known, expression


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs Debian's prometheus")
def test_promtool_takes_the_rules():
    done = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs Debian's prometheus")
def test_the_rules_fire_when_they_should_and_no_sooner():
    tests = RULES.with_name("callboard.rules.test.yaml")
    done = subprocess.run(
        ["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
