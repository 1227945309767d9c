"""Zeeks that are reached over WebSocket JSON: filters, cuts, what goes out, nothing twice."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Endpoint
from callboard.actors.errors import NodeUnreachable
from callboard.model.errors import InvalidOption
from callboard.proxies.errors import LinkError
from callboard.topics.machine.topic import shortest
from callboard.zeek.doors.web_socket_peer import CONNECTION_LIMIT, FilterPlan
from callboard.zeek.json_message import message_to_json
from tests.callboard.zeek.doors.zeeks import Zeek
from tests.polling import eventually
from tests.proxies.papers import Papers

WAIT = 10.0


@pytest.fixture
def zeek():
    with Zeek() as running:
        yield running


@pytest.fixture
def endpoint():
    with Endpoint() as made:
        yield made


def overlaps(filters):
    """Return pairs of topics of two connections of which one covers the other."""
    return [
        (one, other)
        for number, topics in enumerate(filters)
        for others in filters[number + 1 :]
        for one in topics
        for other in others
        if one.startswith(other) or other.startswith(one)
    ]


def test_subscriptions_go_to_zeek_and_its_messages_come(zeek, endpoint):
    with endpoint.make_subscriber(["/zeek/a", "/zeek/b"]) as subscriber:
        peer = endpoint.connect_web_socket(zeek.url, name="detector/1")
        assert (peer.is_connected, peer.version, zeek.filters()) == (
            True, "7.0.0", [["/zeek/a", "/zeek/b"]],
        )  # fmt: skip
        zeek.say("/zeek/b/x", 7)

        assert subscriber.get(WAIT) == ("/zeek/b/x", 7)
        assert zeek.headers()[0]["X-Application-Name"] == "detector/1"


def test_what_this_endpoint_publishes_goes_to_zeek_and_not_what_comes_from_elsewhere(zeek):
    with Zeek() as other, Endpoint() as a, Endpoint() as b:
        assert b.peer("127.0.0.1", a.listen("127.0.0.1", 0))
        a.connect_web_socket(zeek.url)
        a.connect_web_socket(other.url, publish=["/only"])
        with a.make_subscriber("/") as subscriber:
            a.publish("/here", ["ü", 1])
            a.publish("/only", 2)
            assert b.await_filter_entry("/")
            b.publish("/there", 3)
            assert subscriber.get(WAIT) == ("/there", 3)
            eventually(lambda: len(zeek.heard) == 2 and len(other.heard) == 1)
        assert [topic for topic, _ in zeek.heard] == ["/here", "/only"]
        assert [topic for topic, _ in other.heard] == ["/only"]


def test_a_grown_wish_opens_a_further_connection_and_nothing_comes_twice(zeek, endpoint):
    first = endpoint.make_subscriber("/zeek/a")
    peer = endpoint.connect_web_socket(zeek.url)
    second = endpoint.make_subscriber(["/zeek/a/deeper", "/zeek/b"])
    assert peer.await_subscribed(WAIT)
    assert zeek.filters() == [["/zeek/a"], ["/zeek/b"]]

    wide = endpoint.make_subscriber("/zeek")
    assert peer.await_subscribed(WAIT)
    eventually(lambda: zeek.filters() == [["/zeek"]])
    for number in range(10):
        zeek.say("/zeek/a/deeper", number)
    zeek.say("/zeek/end", "end")

    assert wide.get(11, WAIT) == [("/zeek/a/deeper", n) for n in range(10)] + [
        ("/zeek/end", "end")
    ]
    assert [first.get(WAIT)[1] for _ in range(10)] == list(range(10))
    assert [second.get(WAIT)[1] for _ in range(10)] == list(range(10))
    assert [each.available() for each in (first, second, wide)] == [0, 0, 0]
    assert not any(overlaps(each) for each in zeek.seen_filters)


def test_a_shrunk_wish_goes_with_the_next_reconnect(zeek, endpoint):
    kept, dropped = endpoint.make_subscriber("/kept"), endpoint.make_subscriber("/dropped")
    peer = endpoint.connect_web_socket(zeek.url)
    dropped.close()
    assert peer.await_subscribed(WAIT)
    assert zeek.filters() == [["/dropped", "/kept"]]

    zeek.cut()
    eventually(lambda: zeek.filters() == [["/kept"]])
    zeek.say("/kept", 1)

    assert kept.get(WAIT) == ("/kept", 1)


def test_more_wishes_than_connections_make_them_one_again(zeek, endpoint):
    peer = endpoint.connect_web_socket(zeek.url)
    subscribers = []
    for number in range(CONNECTION_LIMIT + 2):
        subscribers.append(endpoint.make_subscriber(f"/t{number}"))
        assert peer.await_subscribed(WAIT)
    assert len(zeek.filters()) <= CONNECTION_LIMIT
    for number, subscriber in enumerate(subscribers):
        zeek.say(f"/t{number}", number)
        assert subscriber.get(WAIT) == (f"/t{number}", number)


def test_what_is_published_while_no_zeek_is_there_waits_for_it(zeek, endpoint):
    peer = endpoint.connect_web_socket(zeek.url)
    zeek.stop()
    eventually(lambda: not peer.is_connected)
    for number in range(5):
        endpoint.publish("/later", number)
    zeek.start()

    eventually(lambda: [data for _, data in zeek.heard] == list(range(5)))


def test_what_waits_for_a_zeek_is_bounded_by_its_size(endpoint, monkeypatch):
    monkeypatch.setattr("callboard.zeek.doors.web_socket_peer.QUEUE_SIZE", 1_000_000)
    peer = endpoint.connect_web_socket("ws://127.0.0.1:1", timeout=None)
    for _ in range(15):
        endpoint.publish("/large", "x" * 100_000)

    eventually(lambda: peer.dropped == 6)


def test_own_messages_do_not_come_back_by_another_connection(zeek, endpoint):
    peer = endpoint.connect_web_socket(zeek.url)
    one, two = endpoint.make_subscriber("/one"), None
    assert peer.await_subscribed(WAIT)
    two = endpoint.make_subscriber("/two")
    assert peer.await_subscribed(WAIT)
    for topic in ("/one", "/two", "/three"):
        endpoint.publish(topic, "mine")
    eventually(lambda: len(zeek.heard) == 3)
    zeek.say("/one", "end")
    zeek.say("/two", "end")

    assert (one.get(WAIT), two.get(WAIT)) == (("/one", "end"), ("/two", "end"))


def test_an_error_frame_of_zeek_is_told(zeek, endpoint):
    peer = endpoint.connect_web_socket(zeek.url)
    told = []
    peer.on_error = told.append
    zeek.say_text(json.dumps({"type": "error", "code": "c", "context": "no such event"}))
    eventually(lambda: told and told[0].context == "no such event" and peer.errors == 1)


def test_a_callback_that_fails_and_a_zeek_that_complains_without_end_cost_no_message(
    zeek, endpoint, caplog
):
    frame = json.dumps({"type": "error", "code": "c", "context": "no such event"})
    with endpoint.make_subscriber("/t") as subscriber:
        peer = endpoint.connect_web_socket(zeek.url)
        for _ in range(20):
            zeek.say_text(frame)
        zeek.say("/t", 1)
        assert subscriber.get(WAIT) == ("/t", 1)
        assert caplog.text.count("no such event") == 5  # the first, 2nd, 4th, 8th and 16th
        peer.on_error = lambda _: 1 / 0
        zeek.say_text(frame)
        zeek.say("/t", 2)
        assert subscriber.get(WAIT) == ("/t", 2)
        assert "on_error" in caplog.text


def test_what_a_zeek_was_not_asked_for_goes_nowhere(zeek, endpoint):
    with endpoint.make_subscriber("/") as subscriber:
        peer = endpoint.connect_web_socket(zeek.url, subscribe=["/zeek"])
        zeek.say_text(message_to_json("/other", 1))
        zeek.say("/zeek", 2)
        assert (subscriber.get(WAIT), peer.unasked) == (("/zeek", 2), 1)


@pytest.mark.slow
def test_nobody_there_no_zeek_and_a_wrong_token_are_told_at_once(zeek, endpoint):
    port = endpoint.listen_web_socket(tokens={"ann": "secret"})
    with pytest.raises(NodeUnreachable, match="nothing answers"):
        endpoint.connect_web_socket("ws://127.0.0.1:1", timeout=0.3)
    with pytest.raises((LinkError, NodeUnreachable), match="401"):
        endpoint.connect_web_socket(f"ws://127.0.0.1:{port}", timeout=4)
    with pytest.raises((LinkError, NodeUnreachable), match="400"):
        endpoint.connect_web_socket(f"ws://127.0.0.1:{port}/other", timeout=4)
    for url in ("http://x", "zeek", "ws://"):
        with pytest.raises(InvalidOption):
            endpoint.connect_web_socket(url)


def test_our_client_and_our_server_over_tls_with_a_token(endpoint, tmp_path, caplog):
    caplog.set_level("DEBUG")
    papers = Papers(tmp_path / "papers")
    port = endpoint.listen_web_socket(
        tls=papers.tls(mutual=False), tokens={"ann": "secret"}, permissions=None
    )
    with (
        Endpoint() as other,
        endpoint.make_subscriber("/up") as up,
        other.make_subscriber("/down") as down,
    ):
        url = f"wss://127.0.0.1:{port}"
        other.connect_web_socket(url, token="secret", tls=papers.tls(mutual=False))
        other.publish("/up", {"a": {1, 2}})
        assert up.get(WAIT) == ("/up", {"a": {1, 2}})
        endpoint.publish("/down", None)
        assert down.get(WAIT) == ("/down", None)
    assert "secret" not in caplog.text


def test_three_zeeks_at_once_and_one_is_cut_and_back(endpoint):
    zeeks = [Zeek(), Zeek(), Zeek()]
    with zeeks[0], zeeks[1], zeeks[2], endpoint.make_subscriber("/zeek") as subscriber:
        peers = [endpoint.connect_web_socket(each.url) for each in zeeks]
        for number, each in enumerate(zeeks):
            each.say("/zeek/n", [number, "before"])
        zeeks[1].stop()
        eventually(lambda: not peers[1].is_connected)
        zeeks[0].say("/zeek/n", [0, "meanwhile"])
        zeeks[1].start()
        eventually(lambda: zeeks[1].filters() == [["/zeek"]])
        for number, each in enumerate(zeeks):
            each.say("/zeek/n", [number, "after"])

        got = [subscriber.get(WAIT)[1] for _ in range(7)]
        assert sorted(got) == sorted(
            [(n, text) for n in range(3) for text in ("before", "after")] + [(0, "meanwhile")]
        )
        assert not subscriber.available()
        assert [each.connects for each in peers] == [1, 2, 1]
        assert not any(each.heard for each in zeeks)


TOPICS = st.text("ab/", max_size=4)


@given(st.lists(TOPICS))
def test_the_shortest_prefixes_take_the_same_topics(topics):
    kept = shortest(topics)

    assert all(any(topic.startswith(one) for one in kept) for topic in topics)
    assert set(kept) <= set(topics)
    assert not overlaps([[one] for one in kept])


WISHES = st.tuples(st.sampled_from(["want", "up", "cut"]), st.lists(TOPICS, max_size=4))


class Followed(FilterPlan):
    """A plan that is followed by connections without sockets."""

    def follow(self):
        step = self.next_step()
        for key in step.stop:
            del self.held[key]
        if step.renew is not None:
            self.held[step.renew] = None
        if step.opens:
            self.held[object()] = None

    def connected(self, key):
        _, ended = self.ask(key)
        assert key not in ended
        if self.is_spare(key):
            del self.held[key]

    def check(self):
        assert len(self.held) <= CONNECTION_LIMIT
        assert not overlaps([each or () for each in self.held.values()])


def test_a_message_waits_for_the_connection_that_asks_for_its_topic():
    plan = FilterPlan(("/a",))
    plan.held["one"] = None
    plan.ask("one")
    plan.wanted = ("/a", "/b")
    plan.held["two"] = None
    assert (plan.way_of("/b", ["one"]), plan.way_of("/c", ["one"])) == (None, "one")
    assert plan.ask("two") == (("/b",), ())
    assert (plan.way_of("/b/x", ["one"]), plan.way_of("/b/x", ["one", "two"])) == (None, "two")
    assert (plan.way_of("/a", ["two"]), plan.way_of("/a", [])) == (None, None)


@given(st.lists(st.tuples(WISHES, st.integers(0)), max_size=20))
def test_whatever_is_wanted_and_cut_each_topic_is_asked_for_once(steps):
    plan = Followed()

    for (what, topics), number in [*steps, (("want", []), 0)]:
        if what == "want":
            plan.wanted = shortest(topics)
        elif plan.held:
            key = list(plan.held)[number % len(plan.held)]
            plan.held[key] = None
            if what == "up":
                plan.connected(key)
        plan.follow()
        plan.check()
    for _ in range(3):
        for key in [key for key, topics in plan.held.items() if topics is None]:
            plan.connected(key)
        plan.follow()

    assert not plan.missing()
    plan.check()


def test_one_node_of_a_cluster_brings_messages_in_and_another_takes_over(zeek):
    with Endpoint() as a, Endpoint() as b:
        assert b.peer("127.0.0.1", a.listen("127.0.0.1", 0))
        with a.make_subscriber("/zeek/a") as at_a, b.make_subscriber("/zeek/b") as at_b:
            assert a.await_filter_entry("/zeek/b", WAIT)
            assert b.await_filter_entry("/zeek/a", WAIT)
            peers = [each.connect_web_socket(zeek.url) for each in (a, b)]
            wanted = [[], ["/zeek/a", "/zeek/b"]]
            eventually(lambda: sorted(zeek.filters()) == wanted)
            zeek.say("/zeek/a", 1)
            zeek.say("/zeek/b", 2)
            assert (at_a.get(WAIT), at_b.get(WAIT)) == (("/zeek/a", 1), ("/zeek/b", 2))
            b.publish("/from/b", 3)  # it publishes all the same
            eventually(lambda: ("/from/b", 3) in zeek.heard)

            for each, text in ((a, "a"), (b, "b")):  # both ways, and not again by Zeek
                each.publish("/zeek", text)
                eventually(lambda text=text: ("/zeek", text) in zeek.heard)
                each.publish("/zeek/a", text)
                eventually(lambda text=text: ("/zeek/a", text) in zeek.heard)
            zeek.say("/zeek/a", "end")
            assert [at_a.get(WAIT)[1] for _ in range(2)] == ["b", "end"]

            other, holder = sorted(peers, key=lambda peer: len(peer.subscriptions()))
            holder.close()

            eventually(lambda: list(other.subscriptions()) == wanted[1])
            zeek.say("/zeek/a", 4)
            assert (at_a.get(WAIT), at_b.poll()) == (("/zeek/a", 4), [])
