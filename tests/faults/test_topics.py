"""Topics where somebody does not read: the others miss nothing, and memory is bounded."""

import pytest

from callboard.actors.reference import Call
from tests.faults.topic_cast import TopicHost

ENDPOINTS = 8
EACH = 125
MESSAGES = 400
QUEUE = 100
RSS_LIMIT = 200 * 1024 * 1024
PART = 200
"""Messages of 10 kB that are published at a time to a peer that is stopped."""


def asked(ref, method, *args, timeout=30.0):
    return ref.ask(Call(method, args, None), timeout).result(timeout + 1)


@pytest.mark.timeout(120)
def test_a_subscriber_that_never_reads_costs_the_other_999_nothing(
    processes, figure, eventually
):
    nodes = processes(ENDPOINTS)
    for node in nodes[1:]:
        node.connect(nodes[0].address)
    hosts = [node.spawn(TopicHost) for node in nodes]
    for host in hosts:
        asked(host, "begin", "disconnect", 2048)
    asked(hosts[1], "subscribe", "/t", 1, QUEUE)  # it is never read
    for host in hosts[1:]:
        count = ENDPOINTS * EACH // (ENDPOINTS - 1) + 1
        asked(host, "subscribe", "/t", count, 1 << 18)
    total = 1 + (ENDPOINTS - 1) * count
    assert total >= 1000
    eventually(lambda: asked(hosts[0], "receivers", "/t") == ENDPOINTS - 1, 20)
    before = asked(hosts[1], "rss")

    asked(hosts[0], "publish", "/t", 0, MESSAGES, 100)

    for number, host in enumerate(hosts[1:], 1):
        first = 1 if number == 1 else 0
        eventually(
            lambda: asked(host, "read", first) == (MESSAGES, MESSAGES),  # noqa: B023
            30,
        )
    assert asked(hosts[1], "unread") == (QUEUE, MESSAGES - QUEUE)
    grown = asked(hosts[1], "rss") - before
    assert grown < RSS_LIMIT
    figure(
        f"{total:,} subscribers on {ENDPOINTS} endpoints, one never reads: {MESSAGES} messages "
        f"each, none lost to the others; memory grew {grown >> 20} MiB"
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", ["disconnect", "drop_newest", "drop_oldest"])
def test_a_stopped_peer_is_treated_by_its_policy_and_others_miss_nothing(
    processes, figure, eventually, policy
):
    a, b, c = processes(3)
    for node in (b, c):
        node.connect(a.address)
    publisher, stopped, reader = (node.spawn(TopicHost) for node in (a, b, c))
    for host in (publisher, stopped, reader):
        asked(host, "begin", policy, 64)
    for host in (stopped, reader):
        asked(host, "subscribe", "/t", 1, 1 << 18)
    eventually(lambda: asked(publisher, "receivers", "/t") == 2, 10)
    before, sent = asked(publisher, "rss"), 0

    b.pause()
    while not asked(publisher, "dropped"):
        asked(publisher, "publish", "/t", sent, PART, 10_000)
        sent += PART
        assert sent < 100_000
        eventually(lambda: asked(reader, "read", 0) == (sent, sent), 30)  # noqa: B023
    grown, peers = asked(publisher, "rss") - before, asked(publisher, "peers")
    dropped = asked(publisher, "dropped")
    b.resume()

    assert grown < RSS_LIMIT
    if policy == "disconnect":
        eventually(lambda: asked(publisher, "peers") == 3, 20)  # with the test's own node
    eventually(lambda: asked(publisher, "receivers", "/t") == 2, 20)
    figure(
        f"a stopped peer, {policy}: {dropped:,} of {sent:,} messages of 10 kB dropped and "
        f"counted, {peers} links then, memory grew {grown >> 20} MiB, the other missed none"
    )
