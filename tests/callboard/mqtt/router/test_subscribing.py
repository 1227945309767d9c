"""SUBSCRIBE, UNSUBSCRIBE, overlapping and shared subscriptions, options."""

import pytest

from callboard.mqtt.router.limits import Limits, ShareStrategy
from callboard.mqtt.wire.packet import V4, V5, PubAck, Publish, SubAck, UnsubAck
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.stage import Stage


@pytest.mark.parametrize(
    ("version", "code"), [(V4, 0x80), (V5, ReasonCode.TOPIC_FILTER_INVALID)]
)
def test_an_invalid_filter_is_refused_in_the_suback(stage, version, code) -> None:
    client = stage.client("c", version=version)

    answer = client.subscribe("good", "bad/#/x", "fine/+", qos=1)

    assert isinstance(answer, SubAck)
    assert answer.reason_codes == (1, code, 1)
    assert client.end is None


def test_unsubscribe_is_answered_once_for_all_filters(stage) -> None:
    client = stage.client("c")
    client.subscribe("a", "b")

    answer = client.unsubscribe("a", "never", "b")

    gone = ReasonCode.NO_SUBSCRIPTION_EXISTED
    assert answer == UnsubAck(2, (0, gone, 0), Properties())
    assert len(stage.machine.logs) == 0
    stage.client("p").publish("a")
    assert client.got() == []


def test_unsubscribe_of_3_1_1_has_no_codes(stage) -> None:
    client = stage.client("c", version=V4)
    assert client.unsubscribe("never") == UnsubAck(1)


def test_too_many_subscriptions_are_refused() -> None:
    client = Stage(Limits(subscriptions=2)).client("c")
    answer = client.subscribe("a", "b", "c", "a")
    assert answer.reason_codes == (0, 0, ReasonCode.QUOTA_EXCEEDED, 0)


def test_subscribing_again_replaces_the_options(stage) -> None:
    publisher = stage.client("p")
    client = stage.client("c")
    client.subscribe("t", qos=0)
    publisher.publish("t", b"0", 1)
    client.subscribe("t", qos=1)
    publisher.publish("t", b"1", 1)

    assert [(each.payload, each.qos) for each in client.messages()] == [(b"0", 0), (b"1", 1)]


def test_data_request_starts_at_the_log_end_at_subscribe(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("reader")
    reader.subscribe("t")
    publisher.publish("t", b"before")
    late = stage.client("late")
    late.subscribe("t")
    publisher.publish("t", b"after")

    assert reader.payloads() == [b"before", b"after"]
    assert late.payloads() == [b"after"]


@pytest.mark.parametrize("version", [V4, V5])
def test_overlapping_subscriptions_deliver_one_message_with_the_highest_qos(
    stage, version
) -> None:
    publisher = stage.client("p")
    client = stage.client("c", version=version)
    client.subscribe("a/b", qos=0)
    client.subscribe("a/#", qos=2)
    client.subscribe("+/b", qos=1)

    publisher.send(*(publisher.message("a/b", bytes([n]), 2) for n in range(5)))
    publisher.publish("a/c", b"c", 2)

    messages = client.messages()
    assert [each.payload for each in messages] == [*(bytes([n]) for n in range(5)), b"c"]
    assert {each.qos for each in messages} == {2}


def test_one_merged_delivery_has_all_subscription_identifiers(stage) -> None:
    publisher = stage.client("p")
    client = stage.client("c")
    client.subscribe("a/b", identifier=1)
    client.subscribe("a/#", identifier=200)
    client.subscribe("#")

    publisher.publish("a/b")
    publisher.publish("a")

    both, one = client.messages()
    assert sorted(both.properties.subscription_identifiers) == [1, 200]
    assert one.properties.subscription_identifiers == (200,)


def test_a_message_before_a_further_subscription_is_not_lost(stage) -> None:
    publisher = stage.client("p")
    client = stage.client("c", receive_maximum=1, answers=False)
    client.subscribe("a/#", qos=1)
    publisher.send(publisher.message("a/b", b"1", 1), publisher.message("a/b", b"2", 1))
    first = client.messages()
    client.subscribe("a/b", qos=1)  # while the second message waits
    publisher.publish("a/b", b"3", 1)
    client.answers = True
    rest = client.send(PubAck(first[0].packet_id))

    assert [each.payload for each in (*first, *rest)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("dropped", ["a/#", "a/b"])
def test_a_message_is_sent_once_even_if_a_matching_filter_is_removed(stage, dropped) -> None:
    publisher = stage.client("p")
    client = stage.client("c", receive_maximum=1, answers=False)
    client.subscribe("a/#", qos=1)
    client.subscribe("a/b", qos=1)
    publisher.send(*(publisher.message("a/b", bytes([n]), 1) for n in range(4)))
    (first,) = client.messages()

    client.unsubscribe(dropped)
    client.answers = True
    rest = client.send(PubAck(first.packet_id))
    publisher.publish("a/b", b"\4", 1)

    got = [each.payload[0] for each in (first, *rest, *client.messages())]
    assert got == [0, 1, 2, 3, 4]


def test_no_local_excludes_own_messages(stage) -> None:
    client, other = stage.client("c"), stage.client("other")
    client.subscribe("t", no_local=True)

    client.publish("t", b"mine")
    other.publish("t", b"theirs")

    assert client.payloads() == [b"theirs"]


@pytest.mark.parametrize("as_published", [True, False])
def test_retain_as_published_keeps_the_flag(stage, as_published) -> None:
    publisher, client = stage.client("p"), stage.client("c")
    client.subscribe("t", retain_as_published=as_published)

    publisher.publish("t", b"kept", retain=True)
    publisher.publish("t", b"not")

    assert [each.retain for each in client.messages()] == [as_published, False]


def test_dollar_topics_are_not_matched_by_leading_wildcards(stage) -> None:
    publisher = stage.client("p", is_local=True)
    all_of_them, own = stage.client("all"), stage.client("own")
    all_of_them.subscribe("#", "+/x")
    own.subscribe("$x/#", "$SYS/+")

    publisher.publish("$x/x", b"1")
    publisher.publish("$SYS/x", b"2")

    assert all_of_them.got() == []
    assert own.payloads() == [b"1", b"2"]


def test_clients_may_not_publish_below_sys(stage) -> None:
    client, reader = stage.client("c"), stage.client("r")
    reader.subscribe("$SYS/#")

    (answer,) = client.send(client.message("$SYS/x", b"", 1))

    assert answer.reason_code == ReasonCode.NOT_AUTHORIZED
    assert reader.got() == []
    assert stage.machine.meters.refused == 1


# --- access ---


class Rules:
    """Allows topics below `ok`."""

    def may_publish(self, topic: str) -> bool:
        return topic.startswith("ok")

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        return min(qos, 1) if topic_filter.startswith("ok") else ReasonCode.NOT_AUTHORIZED

    def may_receive(self, topic: str) -> bool:
        return "secret" not in topic


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_access_refuses_each_topic_and_filter(stage, version, qos) -> None:
    reader = stage.client("r")
    reader.subscribe("#", qos=2)
    client = stage.client("c", version=version, access=Rules(), answers=False)

    codes = client.subscribe("ok/#", "no", qos=qos).reason_codes
    answers = client.send(*(client.message(topic, b"", qos) for topic in ("no", "no", "ok/1")))
    stage.client("p").publish("ok/secret")

    assert codes == (min(qos, 1), ReasonCode.NOT_AUTHORIZED if version == V5 else 0x80)
    assert {each.topic for each in reader.messages()} == {"ok/1", "ok/secret"}
    refusal = ReasonCode.NOT_AUTHORIZED if version == V5 else 0
    replies = [each.reason_code for each in answers if not isinstance(each, Publish)]
    assert replies == ([refusal, refusal, 0] if qos else [])
    assert [each.topic for each in client.messages()] == []
    assert client.end is None


def test_access_that_changed_is_asked_again(stage) -> None:
    reader = stage.client("r")
    reader.subscribe("#")
    client = stage.client("c", access=Rules())
    client.publish("ok")
    client.link.access = None
    client.link.access_changed()

    client.publish("no")

    assert [each.topic for each in reader.messages()] == ["ok", "no"]


# --- shared subscriptions ---


def test_shared_messages_are_delivered_to_the_members_in_turn(stage) -> None:
    publisher = stage.client("p")
    members = [stage.client(f"m{number}") for number in range(3)]
    for member in members:
        member.subscribe("$share/g/t", qos=1)
    other = stage.client("other")
    other.subscribe("t")

    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(30)))

    got = [member.payloads() for member in members]
    assert [len(each) for each in got] == [10, 10, 10]
    assert sorted(payload[0] for each in got for payload in each) == list(range(30))
    assert len(other.payloads()) == 30


def test_two_groups_get_all_messages_each(stage) -> None:
    publisher = stage.client("p")
    one, two = stage.client("1"), stage.client("2")
    one.subscribe("$share/a/t")
    two.subscribe("$share/b/t")

    publisher.publish("t")

    assert (len(one.payloads()), len(two.payloads())) == (1, 1)


@pytest.mark.parametrize("strategy", list(ShareStrategy))
def test_share_groups_roundrobin_random_and_sticky_deliver_each_message_to_one_member(
    strategy,
) -> None:
    stage = Stage(Limits(share_strategy=strategy))
    publisher = stage.client("p")
    members = [stage.client(f"m{number}") for number in range(3)]
    for member in members:
        member.subscribe("$share/g/t", qos=1)

    for begin in range(0, 60, 20):
        publisher.send(
            *(publisher.message("t", bytes([n]), 1) for n in range(begin, begin + 20))
        )

    counts = [len(member.payloads()) for member in members]
    assert sum(counts) == 60
    assert (60 in counts) is (strategy is ShareStrategy.STICKY)


def test_consume_skips_a_shared_request_when_the_window_is_full(stage) -> None:
    publisher = stage.client("p")
    slow = stage.client("slow", answers=False, receive_maximum=1)
    quick = stage.client("quick")
    for member in (slow, quick):
        member.subscribe("$share/g/t", qos=1)

    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(20)))

    assert (len(slow.payloads()), len(quick.payloads())) == (1, 19)


def test_a_share_group_waits_while_no_member_has_room(stage) -> None:
    publisher = stage.client("p")
    member = stage.client("m", answers=False, receive_maximum=1)
    member.subscribe("$share/g/t", qos=1)
    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(3)))
    (first,) = member.messages()

    (second,) = member.send(PubAck(first.packet_id))
    late = stage.client("late")
    late.subscribe("$share/g/t", qos=1)

    assert second.payload == b"\1"
    assert late.payloads() == [b"\2"]


def test_unacknowledged_shared_messages_are_sent_to_another_member_when_a_session_ends(
    stage,
) -> None:
    publisher = stage.client("p")
    first = stage.client("first", answers=False)
    first.subscribe("$share/g/t", qos=1)
    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(3)))
    other = stage.client("other")
    other.subscribe("$share/g/t", qos=1)

    first.lose()

    assert sorted(other.payloads()) == [b"\0", b"\1", b"\2"]


def test_a_shared_message_goes_to_a_member_whose_packet_limit_admits_it(stage) -> None:
    publisher = stage.client("p")
    small = stage.client("small", maximum_packet_size=100)
    large = stage.client("large")
    for member in (small, large):
        member.subscribe("$share/g/t", qos=1)

    for number in range(6):
        publisher.publish("t", b"x" * (1_000 if number % 2 else 10), 1)

    sizes = sorted(map(len, large.payloads())), sorted(map(len, small.payloads()))
    assert sizes[0].count(1_000) == 3
    assert sizes[0].count(10) + sizes[1].count(10) == 3
    assert stage.machine.meters.too_large == 0


def test_a_sticky_share_leaves_its_member_for_a_message_that_it_cannot_get() -> None:
    stage = Stage(Limits(share_strategy=ShareStrategy.STICKY))
    publisher = stage.client("p")
    small = stage.client("small", maximum_packet_size=100)
    large = stage.client("large")
    for member in (small, large):
        member.subscribe("$share/g/t", qos=1)

    publisher.send(
        *(publisher.message("t", b"x" * size, 1) for size in (10, 10, 1_000, 10, 1_000))
    )

    assert len(small.payloads()) + len(large.payloads()) == 5
    assert stage.machine.meters.too_large == 0


def test_a_shared_message_goes_to_a_member_that_may_receive_it(stage) -> None:
    class NoSecrets:
        def may_publish(self, topic: str) -> bool:
            return True

        def may_subscribe(self, topic_filter: str, qos: int) -> int:
            return qos

        def may_receive(self, topic: str) -> bool:
            return topic != "a/secret"

    publisher = stage.client("p")
    barred, free = stage.client("barred", access=NoSecrets()), stage.client("free")
    for member in (barred, free):
        member.subscribe("$share/g/a/+", qos=1)

    for _ in range(4):
        publisher.publish("a/secret", b"secret", 1)

    assert free.payloads() == [b"secret"] * 4
    assert barred.payloads() == []


def test_a_share_group_waits_for_the_only_member_that_can_get_a_message(stage) -> None:
    publisher = stage.client("p")
    small = stage.client("small", maximum_packet_size=100)
    large = stage.client("large", receive_maximum=1, answers=False)
    for member in (small, large):
        member.subscribe("$share/g/t", qos=1)
    publisher.publish("t", b"a" * 1_000, 1)
    publisher.publish("t", b"b" * 1_000, 1)

    (first,) = large.messages()
    waited = small.payloads()
    (second,) = large.send(PubAck(first.packet_id))

    assert (waited, second.payload[:1]) == ([], b"b")
    publisher.publish("t", b"c" * 1_000, 1)
    publisher.publish("t", b"d", 1)
    large.lose()  # nobody else can get the second and third message
    assert small.payloads() == [b"d"]
    assert stage.machine.meters.too_large == 2


def test_shared_messages_with_qos_0_go_to_members_with_a_full_window(stage) -> None:
    publisher = stage.client("p")
    member = stage.client("m", receive_maximum=1, answers=False)
    member.subscribe("$share/g/+", qos=1)
    publisher.publish("job", b"job", 1)

    for number in range(3):
        publisher.publish("beat", b"%d" % number)

    assert member.payloads() == [b"job", b"0", b"1", b"2"]


def test_shared_groups_get_no_retained_messages(stage) -> None:
    stage.client("p").publish("t", b"kept", retain=True)
    member = stage.client("m")
    member.subscribe("$share/g/t")
    assert member.got() == []


def test_the_last_member_ends_the_group(stage) -> None:
    first, second = stage.client("1"), stage.client("2")
    for member in (first, second):
        member.subscribe("$share/g/t")
    first.unsubscribe("$share/g/t")
    stage.client("p").publish("t")
    assert len(second.payloads()) == 1

    second.unsubscribe("$share/g/t")

    assert not stage.machine.delivery.groups
    assert len(stage.machine.logs) == 0


def test_filters_that_leave_together_still_send_a_message_once(stage) -> None:
    publisher = stage.client("p")
    client = stage.client("c", receive_maximum=1, answers=False)
    client.subscribe("a/#", "a/b", qos=1)
    publisher.send(*(publisher.message("a/b", bytes([n]), 1) for n in range(3)))
    (first,) = client.messages()
    client.unsubscribe("a/#", "a/b")  # while two messages wait
    client.subscribe("elsewhere", qos=1)

    client.answers = True
    rest = client.send(PubAck(first.packet_id))

    assert [each.payload[0] for each in (first, *rest)] == [0, 1, 2]


def test_unsubscribe_removes_the_request_the_waiter_and_the_group_membership(stage) -> None:
    client, other = stage.client("c"), stage.client("o")
    for each in (client, other):
        each.subscribe("a", "$share/g/b")
    session = stage.machine.sessions.connections["c"].session

    client.unsubscribe("a", "$share/g/b")

    log = stage.machine.logs.get("a")
    assert (session.requests, session.subscriptions) == ({}, {})
    assert ([each.session.client_id for each in log.waiters], log.readers) == (["o"], 1)
    assert [each.client_id for each in stage.machine.delivery.groups["$share/g/b"].members] == [
        "o"
    ]


def test_a_topic_that_starts_with_a_dollar_matches_only_filters_that_do(stage) -> None:
    client = stage.client("c")
    client.subscribe("$x/#", "$x/+")

    client.publish("$x/1", b"once")

    assert client.payloads() == [b"once"]


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
def test_changing_the_qos_of_a_filter_neither_duplicates_nor_loses_messages(
    stage, before, after
) -> None:
    reader = stage.client("r", answers=False, receive_maximum=1, clean=False, expiry=60)
    reader.subscribe("held", "a/b", qos=1)
    reader.subscribe("a/#", qos=before)
    publisher = stage.client("p")
    publisher.send(publisher.message("held", b"held", 1), publisher.message("a/b", b"1", 1))
    reader.subscribe("a/#", qos=after)
    publisher.publish("a/b", b"2", 1)

    reader.answers = True
    for message in reader.messages():
        reader._answer(message)
    stage.run()

    assert reader.payloads() == [b"1", b"2"]
