"""The table of a flow broker: the rules of initiation, on bytes alone."""

import itertools
import random

import pytest

from callboard.flow.protocol.association import (
    PENDING_TIME,
    AssociationTable,
    CallFactory,
    Forget,
    Send,
)
from callboard.flow.protocol.message import Message

CLIENT, HANDLER, STRANGER = 101, 202, 303


def made(flow, seqno=0, payload=(), **about):
    return Message(seqno=seqno, payload=payload).with_object({"flow": flow, **about}).encode()


def read(data):
    return Message.decode(data).label_object


class Port:
    """A table, with everything that it wanted to be done."""

    def __init__(self):
        words = itertools.count(1)
        self.table = AssociationTable(lambda: f"key{next(words)}")
        self.sent, self.called, self.forgotten = [], [], []

    def take(self, rid, data, now=0.0):
        return self.do(self.table.receive(rid, data, now))

    def do(self, effects):
        self.sent = [(e.rid, e.data) for e in effects if isinstance(e, Send)]
        self.called += [e.bot for e in effects if isinstance(e, CallFactory)]
        self.forgotten += [e.rid for e in effects if isinstance(e, Forget)]
        return [(rid, read(data)) for rid, data in self.sent]

    def begin(self, client=CLIENT, **about):
        self.take(client, made("BOT", **{"direction": "extract", "credit": 3, **about}))
        return self.called[-1].label_object

    def open(self, client=CLIENT, handler=HANDLER, **about):
        return self.take(handler, made(**self.begin(client, **about)))


@pytest.fixture
def port():
    return Port()


@pytest.fixture
def opened(port):
    port.open()
    return port


def test_z03_the_factory_gets_cid_and_the_reversed_direction_and_the_rest_unchanged(port):
    port.take(
        CLIENT, made("BOT", payload=(b"p",), direction="extract", credit=7, stream="raw", n=[1])
    )

    (bot,) = port.called
    about = bot.label_object
    assert about.pop("cid_key")
    assert about == {
        **{"flow": "BOT", "direction": "inject", "credit": 7},
        **{"stream": "raw", "n": [1], "cid": CLIENT},
    }
    assert bot.payload == (b"p",)
    assert port.sent == []


def test_z05_what_the_handler_changes_is_what_the_client_sees(port):
    about = port.begin(credit=7)

    out = port.take(HANDLER, made(**{**about, "credit": 2, "color": "red"}))

    seen = {"flow": "BOT", "direction": "inject", "credit": 2, "color": "red"}
    assert out[0] == (CLIENT, seen)


def test_z05_a_handler_that_drops_the_cid_is_a_remote_client(port):
    about = port.begin()
    del about["cid"]

    port.take(HANDLER, made(**about))

    assert port.called[-1].label_object["cid"] == HANDLER


def test_z06_any_message_with_a_cid_associates_both_ways(port):
    about = port.begin()
    port.take(HANDLER, made(**about))
    assert not port.table.is_waiting
    assert HANDLER in port.table

    again = Port()
    about = again.begin()
    refusal = again.take(
        HANDLER, made("EOT", cid=CLIENT, cid_key=about["cid_key"], reason="no")
    )
    assert refusal == [(CLIENT, {"flow": "EOT", "reason": "no"})]


def test_z07_both_get_the_others_bot_stripped_of_the_cid(port):
    out = port.open(stream="raw")

    rest = {"credit": 3, "stream": "raw", "flow": "BOT"}
    assert out == [
        (CLIENT, {"direction": "inject", **rest}),
        (HANDLER, {"direction": "extract", **rest}),
    ]


def test_z08_later_messages_go_to_the_partner_byte_for_byte(opened):
    pay = made("PAY", 1, credit=3)
    dat = made("DAT", 1, (b"x", b""), any={"thing": None})
    eot, echo = made("EOT", 2), made("EOT", 2, count=1)

    for sender, data, partner in (
        (HANDLER, pay, CLIENT),
        (CLIENT, dat, HANDLER),
        (CLIENT, eot, HANDLER),
        (HANDLER, echo, CLIENT),
    ):
        opened.take(sender, data)
        assert opened.sent == [(partner, data)]


def test_z09_each_eot_erases_its_senders_direction_and_the_second_the_entry(opened):
    opened.take(HANDLER, made("PAY", 1, credit=3))

    opened.take(CLIENT, made("EOT", 1))
    assert len(opened.table) == 1
    opened.take(CLIENT, made("DAT", 2))
    assert opened.sent == []  # its direction is erased
    opened.take(HANDLER, made("EOT", 2))
    assert opened.sent == [(CLIENT, made("EOT", 2))]
    assert len(opened.table) == 0
    assert sorted(opened.forgotten) == [CLIENT, HANDLER]
    assert opened.table.counters.ended == 1


@pytest.mark.parametrize("kind", ["DAT", "PAY", "EOT"])
def test_z10_what_strangers_say_is_dropped_and_counted(opened, kind):
    opened.take(STRANGER, made(kind, 1, credit=1))

    assert opened.sent == []
    assert opened.table.counters.unknown == 1


def test_z11_clients_never_see_cid_or_its_key(port):
    port.open(cidlike=1)
    seen = [data for rid, data in port.sent if rid == CLIENT]
    port.begin(client=7)
    port.do(port.table.refuse(7, "no"))
    seen += [data for rid, data in port.sent]

    assert len(seen) == 2
    assert not any(b'"cid' in data.replace(b'"cidlike', b"") for data in seen)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"direction": "out", "credit": 3},
        {"direction": None, "credit": 3},
        {"direction": "extract"},
        {"direction": "extract", "credit": 0},
        {"direction": "extract", "credit": -1},
        {"direction": "extract", "credit": True},
        {"direction": "extract", "credit": 2.0},
        {"direction": "extract", "credit": 10**7},
        {"direction": "extract", "credit": 1, "long": "x" * 65_470},
    ],
)
def test_a_bot_of_no_use_is_refused_and_the_factory_not_called(port, about):
    ((rid, answer),) = port.take(CLIENT, made("BOT", **about))

    assert (rid, answer["flow"]) == (CLIENT, "EOT")
    assert answer["reason"]
    assert port.called == []
    assert len(port.table) == 0


@pytest.mark.parametrize("data", [b"", b"x", b"\x16ZIO", bytes(40), made("LOT"), b"\xff" * 40])
def test_what_cannot_be_read_is_dropped_and_counted(opened, data):
    opened.take(CLIENT, data)

    assert opened.sent == []
    assert opened.table.counters.malformed == 1
    assert len(opened.table) == 1


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"cid": CLIENT}, "cid_key"),
        ({"cid": CLIENT, "cid_key": "key2"}, "cid_key"),
        ({"cid": 5, "cid_key": "key1"}, "is not that of a pending flow"),
        ({"cid": "x", "cid_key": "key1"}, "is not that of a pending flow"),
        ({"cid": True, "cid_key": "key1"}, "is not that of a pending flow"),
        ({"cid": [1]}, "is not that of a pending flow"),
    ],
)
def test_a_cid_that_was_not_given_is_refused_and_never_associated(port, claim, says):
    port.begin()

    ((rid, answer),) = port.take(STRANGER, made("BOT", direction="inject", credit=1, **claim))

    assert rid == STRANGER
    assert says in answer["reason"]
    assert port.table.is_waiting
    assert len(port.table) == 1


def test_a_client_cannot_claim_its_own_flow_or_anothers(port):
    about = port.begin()
    port.open(client=7, handler=8)

    out = port.take(7, made(**about))

    assert sorted(rid for rid, _ in out) == [7, 8]  # its own flow ends
    assert port.table.is_waiting


@pytest.mark.parametrize(
    ("rid", "data", "rule"),
    [
        (CLIENT, made("BOT", 1, direction="extract", credit=1), "may be a BOT"),
        (HANDLER, made("BOT", 1, direction="extract", credit=1), "may be a BOT"),
        (CLIENT, made("DAT", 1), "needs credit"),
        (HANDLER, made("DAT", 1), "only the giver"),
        (CLIENT, made("PAY", 1, credit=1), "only the taker"),
        (HANDLER, made("PAY", 1, credit=4), "total credit of 3"),
        (HANDLER, made("PAY", 1, credit="1"), "is not above 0"),
    ],
)
def test_who_breaks_the_protocol_ends_the_flow_on_both_sides(opened, rid, data, rule):
    out = opened.take(rid, data)

    assert sorted(rid for rid, _ in out) == [CLIENT, HANDLER]
    assert all(rule in answer["reason"] for _, answer in out)
    assert len(opened.table) == 0
    assert opened.table.counters.aborted == 1


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"direction": "extract"}, "the direction of"),
        ({"credit": 4}, "raises"),
        ({"credit": 0}, "credit 0"),
        ({"flow": "DAT"}, "before the flow was open"),
    ],
)
def test_an_answer_of_no_use_ends_the_flow_on_both_sides(port, change, rule):
    about = port.begin()

    out = port.take(HANDLER, made(**{**about, **change}))

    assert [rid for rid, _ in out] == [CLIENT, HANDLER]
    assert all(rule in answer["reason"] for _, answer in out)
    assert len(port.table) == 0


@pytest.mark.parametrize(("gone", "left"), [(CLIENT, HANDLER), (HANDLER, CLIENT)])
def test_when_one_side_is_lost_the_other_gets_eot(opened, gone, left):
    out = opened.do(opened.table.down(gone, "killed"))

    assert [rid for rid, _ in out] == [left]
    assert "killed" in out[0][1]["reason"]
    assert len(opened.table) == 0


def test_the_eot_of_a_broker_has_a_sequence_number_that_rises(opened):
    opened.take(HANDLER, made("PAY", 1, credit=3))
    opened.take(CLIENT, made("DAT", 7))

    opened.do(opened.table.down(CLIENT, "gone"))

    assert Message.decode(opened.sent[0][1]).seqno == 8


def test_a_flow_that_no_handler_answers_is_refused_in_time(port):
    port.take(CLIENT, made("BOT", direction="extract", credit=3), now=5.0)

    assert port.do(port.table.expire(5.0 + PENDING_TIME - 0.1)) == []
    ((rid, answer),) = port.do(port.table.expire(5.0 + PENDING_TIME))
    assert rid == CLIENT
    assert "no handler" in answer["reason"]
    assert len(port.table) == 0


def test_a_client_that_gives_up_is_answered_and_its_handler_comes_too_late(port):
    about = port.begin()

    assert port.take(CLIENT, made("EOT", 1)) == [(CLIENT, {"flow": "EOT"})]
    ((rid, answer),) = port.take(HANDLER, made(**about))
    assert (rid, answer["flow"]) == (HANDLER, "EOT")


def test_nothing_that_anybody_says_raises_or_leaves_flows_behind():
    rng = random.Random(4)
    port = Port()
    for _ in range(4000):
        rid = rng.randint(1, 6)
        if port.called and rng.random() < 0.3:
            about = dict(rng.choice(port.called[-4:]).label_object)
        else:
            about = {"flow": rng.choice(["BOT", "DAT", "PAY", "EOT"])}
            about["direction"] = rng.choice(["extract", "inject", 3])
            about["credit"] = rng.choice([1, 2, 3, 0, "x"])
        data = bytearray(made(**about))
        if rng.random() < 0.1:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        port.take(rid, bytes(data))
    for rid in range(1, 7):
        port.do(port.table.down(rid, "end"))

    counters = port.table.counters
    assert counters.opened > 20
    assert len(port.table) == 0
    assert not port.table.is_waiting
