import logging

import pytest

from callboard import Actor, Node, handler
from callboard.operation import label_log_records
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
