"""The `callboard queue` commands, against two nodes of which one owns a queue."""

import json
from types import SimpleNamespace

import pytest

from callboard import Actor, Node, handler
from callboard.cli import main
from callboard.operation.metrics import node_metrics
from callboard.proxies.inspection import PartRows
from tests.polling import eventually


@pytest.fixture
def cluster(tmp_path):
    """The node `gate`, linked with `shop`, whose queue `mails` has three dead jobs."""
    with Node("gate") as gate, Node("shop") as shop:
        gate.listen("127.0.0.1", 0)
        shop.connect(gate.address)
        eventually(lambda: [node.name for node in gate.nodes()] == ["shop"])
        queue = shop.queue("mails", state=f"sqlite:{tmp_path}/jobs.db", attempts=1, limit=50)
        for name in ("ann", "bob", "cid"):
            queue.put(name).result(10)
            queue.take().result(10).nack(reason=f"no such user: {name}").result(10)
        yield SimpleNamespace(gate=gate, shop=shop, queue=queue)


def call(capsys, *arguments):
    code = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows(capsys, *arguments):
    code, out, _ = call(capsys, "queue", *arguments, "--json")
    assert code == 0
    return json.loads(out)["rows"]


def test_queues_are_listed_with_their_owner_and_their_jobs_by_status(cluster, capsys):
    cluster.queue.put("dan").result(10)
    cluster.queue.put("eve", delay=60).result(10)

    (row,) = rows(capsys, "ls", cluster.gate.address)

    assert row == {
        **{"node": "shop", "queue": "mails", "ready": 1, "delayed": 1, "taken": 0, "dead": 3},
        **{"waiting": 0, "limit": 50, "attempts": 1},
    }
    assert rows(capsys, "stats", cluster.gate.address, "mails") == [row]


def test_dead_jobs_are_listed_with_their_last_reason_and_value(cluster, capsys):
    dead = rows(capsys, "dead", cluster.gate.address, "mails")

    assert [(row["value"], row["reason"], row["attempts"]) for row in dead] == [
        ('"ann"', "no such user: ann", 1),
        ('"bob"', "no such user: bob", 1),
        ('"cid"', "no such user: cid", 1),
    ]


def test_a_requeued_job_is_taken_again_and_a_discarded_one_is_gone(cluster, capsys):
    ann, bob, cid = (row["job"] for row in rows(capsys, "dead", cluster.gate.address, "mails"))

    assert call(capsys, "queue", "requeue", cluster.gate.address, "mails", bob)[0] == 0
    assert call(capsys, "queue", "discard", cluster.gate.address, "mails", ann)[0] == 0

    assert cluster.queue.take().result(10).value == "bob"
    assert [row["job"] for row in rows(capsys, "dead", cluster.gate.address, "mails")] == [cid]
    assert call(capsys, "queue", "discard", cluster.gate.address, "mails", "--all")[0] == 0
    assert rows(capsys, "dead", cluster.gate.address, "mails") == []


def test_a_job_that_is_not_dead_is_reported_with_exit_code_1(cluster, capsys):
    code, _, err = call(capsys, "queue", "requeue", cluster.gate.address, "mails", 7)

    assert code == 1
    assert "1 of the given jobs of mails are not dead" in err


def test_jobs_or_all_must_be_given(cluster, capsys):
    assert call(capsys, "queue", "discard", cluster.gate.address, "mails")[0] == 2
    assert call(capsys, "queue", "discard", cluster.gate.address, "mails", 7, "--all")[0] == 2


def test_an_unknown_queue_is_an_error_that_names_the_command_to_list_queues(cluster, capsys):
    code, _, err = call(capsys, "queue", "stats", cluster.gate.address, "bills")

    assert code == 1
    assert "no node in reach owns a queue 'bills'" in err
    assert f"callboard queue ls {cluster.gate.address}" in err


def test_a_node_of_an_older_release_is_named_with_its_release(cluster, capsys, monkeypatch):
    def old_rows(ordered, window, question):
        return PartRows([])

    monkeypatch.setattr("callboard.proxies.inspection._part_rows", old_rows)
    monkeypatch.setattr("callboard.proxies.inspection.RELEASE", "0.1.7")

    code, _, err = call(capsys, "queue", "ls", cluster.gate.address)

    assert code == 1
    assert "shop: it runs release 0.1.7" in err
    assert "upgrade callboard there to " in err


def test_a_node_that_never_used_a_queue_has_none(capsys):
    with Node("gate") as gate:
        gate.listen("127.0.0.1", 0)

        assert rows(capsys, "ls", gate.address) == []


def test_metrics_count_the_jobs_of_each_queue_by_status(cluster):
    metrics = {metric.name: metric.samples for metric in node_metrics(cluster.shop)}

    jobs = {labels[1][1]: value for labels, value in metrics["callboard_queue_jobs"]}
    assert jobs == {"ready": 0, "delayed": 0, "taken": 0, "dead": 3}
    assert metrics["callboard_queue_jobs_max"] == [((("queue", "mails"),), 50)]


class Worker(Actor):
    @handler
    async def work(self, queue: str) -> None:
        job = await self.node.queue(queue).take()
        await job.ack()
        await self.sleep(60)


@pytest.mark.slow
def test_a_taker_that_waits_for_a_job_does_not_hang_but_one_that_has_a_job_may(cluster, capsys):
    cluster.shop.spawn(Worker).tell("mails")
    eventually(lambda: rows(capsys, "ls", cluster.gate.address)[0]["waiting"] == 1)

    def worker():
        (found,) = cluster_rows("ps", "--match", "Worker")
        return found

    def cluster_rows(command, *options):
        arguments = "cluster", command, cluster.gate.address, *options, "--json"
        return json.loads(call(capsys, *arguments)[1])["rows"]

    def hanging():
        return [row["actor_class"] for row in cluster_rows("hangs", "--seconds", "1")]

    eventually(lambda: worker()["age"] > 3)
    assert worker()["awaits"].startswith("the next value of basp:///")
    assert hanging() == []
    cluster.queue.put("ann").result(10)
    eventually(lambda: hanging() == ["Worker"])
