import json
import logging
import subprocess
import sys

import pytest

from callboard import Actor, Node, handler, traced
from callboard.operation import JsonFormatter, label_log_records
from callboard.operation.logs import FORMAT

log = logging.getLogger("test.operation.logs")


class Talker(Actor):
    @handler
    async def text(self, msg: str) -> None:
        log.warning("before %s", msg)
        await self.sleep(0)
        log.warning("after %s", msg)


@pytest.fixture(autouse=True)
def _own_factory():
    before = logging.getLogRecordFactory()
    label_log_records()
    yield
    logging.setLogRecordFactory(before)


def test_records_of_a_handler_name_its_node_and_actor(caplog):
    with Node("shop") as node:
        talker = node.spawn(Talker)
        talker.ask("it").result(5)

    records = [record for record in caplog.records if record.name == log.name]
    assert [record.getMessage() for record in records] == ["before it", "after it"]
    for record in records:
        assert (record.node, record.actor) == ("shop", f"Talker/{talker.actor_id}")
        assert f"[shop Talker/{talker.actor_id}]" in logging.Formatter(FORMAT).format(record)


def test_records_of_a_nodes_own_parts_name_the_node(caplog):
    with Node("shop") as node:
        node.spawn(Talker).ask("x").result(5)
        done = node.find_all("nobody")
        node.runtime.runner.post(log.warning, "from the runner")
        done.result(5)

    record = next(found for found in caplog.records if found.msg == "from the runner")
    assert (record.node, record.actor) == ("shop", "-")


def test_records_from_elsewhere_name_nothing(caplog):
    log.warning("alone")

    (record,) = caplog.records
    assert (record.node, record.actor) == ("-", "-")


def test_labels_are_given_once():
    factory = logging.getLogRecordFactory()
    label_log_records()

    assert logging.getLogRecordFactory() is factory


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_records_of_a_traced_message_have_the_ids_of_its_trace(caplog):
    with Node("shop") as node, traced(TRACE):
        node.spawn(Talker).ask("it").result(5)
    log.warning("outside")

    *records, outside = [record for record in caplog.records if record.name == log.name]
    assert [(record.trace, record.span) for record in records] == [
        ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    ] * 2
    text = logging.Formatter(FORMAT).format(records[0])
    assert " trace=4bf92f3577b34da6a3ce929d0e0e4736] " in text
    assert (outside.trace, outside.span, outside.in_trace) == ("-", "-", "")


def test_records_are_lines_of_json(caplog):
    with Node("shop") as node, traced(TRACE):
        talker = node.spawn(Talker)
        talker.ask("it \x1b[2J\n").result(5)
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed", extra={"order": 7, "level": "mine"})

    lines = [JsonFormatter().format(each) for each in caplog.records if each.name == log.name]
    assert all(line.isprintable() for line in lines)
    first, _, last = map(json.loads, lines)
    assert {key: first[key] for key in ("node", "actor", "level", "message", "trace_id")} == {
        "node": "shop",
        "actor": f"Talker/{talker.actor_id}",
        "level": "WARNING",
        "message": "before it \x1b[2J\n",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }
    assert (last["order"], last["level"], "trace_id" in last) == (7, "ERROR", False)
    assert last["exception"].endswith("ValueError: no")


PROGRAM = """
import threading, warnings
from callboard.operation.logs import set_up_logging

set_up_logging("info", "json")
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0, name="till")
thread.start()
thread.join()

def made():
    class Broken:
        def __del__(self):
            raise ValueError("in a finalizer")
    Broken()
made()
raise LookupError("at the end")
"""


def test_everything_that_python_prints_is_a_line_of_json():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )

    rows = [json.loads(line) for line in done.stderr.splitlines()]
    assert [row["level"] for row in rows] == ["WARNING", "ERROR", "ERROR", "CRITICAL"]
    assert "UserWarning: old" in rows[0]["message"]
    assert "the thread till ended" in rows[1]["message"]
    assert "ZeroDivisionError" in rows[1]["exception"]
    assert "in a finalizer" in rows[2]["exception"]
    assert "LookupError: at the end" in rows[3]["exception"]
    assert done.returncode == 1
