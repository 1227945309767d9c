"""One side of a flow, without any transport."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.flow.errors import LocalFlowError, MalformedMessage, RemoteFlowError
from callboard.flow.protocol.machine import Dat, End, FlowMachine, FlowState, Opened
from callboard.flow.protocol.message import Message


def made(flow, seqno=0, payload=(), **about):
    return (
        Message(label="", seqno=seqno, payload=payload)
        .with_object({"flow": flow, **about})
        .encode()
    )


def pair(credit=3, lowered=3):
    giver, taker = FlowMachine("extract", credit, {"who": "me"}), FlowMachine("inject", lowered)
    taker.receive(giver.open())
    giver.receive(taker.open())
    return giver, taker


def test_bots_cross_and_the_lower_credit_holds():
    giver, taker = pair(credit=10, lowered=4)

    assert giver.state is taker.state is FlowState.FLOWING
    assert (giver.total_credit, taker.total_credit) == (4, 4)
    assert (giver.credit, taker.credit) == (0, 4)


def test_the_bot_carries_what_its_sender_says():
    giver, taker = FlowMachine("extract", 3, {"who": "me"}), FlowMachine("inject", 3)

    assert taker.receive(giver.open((b"hello",))) == Opened({"who": "me"}, (b"hello",))


def test_credit_goes_round():
    giver, taker = pair()

    assert giver.receive(taker.pay()) is None
    assert (giver.credit, taker.credit) == (3, 0)
    assert taker.receive(giver.put((b"a",), {"k": 1})) == Dat((b"a",), {"k": 1}, 1)
    assert (giver.credit, taker.credit, taker.waiting) == (2, 0, 1)
    taker.taken()
    assert giver.receive(taker.pay()) is None
    assert giver.credit == 3


def test_sequence_numbers_rise_by_one_over_all_kinds():
    giver, taker = pair()
    giver.receive(taker.pay())
    sent = [giver.put(), giver.put(), giver.end()]

    assert [Message.decode(data).seqno for data in sent] == [1, 2, 3]


def test_a_sequence_number_that_does_not_rise_breaks_the_protocol():
    giver, taker = pair()
    giver.receive(taker.pay())
    data = giver.put()
    taker.receive(data)

    with pytest.raises(RemoteFlowError, match="seqno"):
        taker.receive(data)


def test_eot_is_echoed_and_late_dats_are_absorbed():
    giver, taker = pair()
    giver.receive(taker.pay())
    eot, late = taker.end({"why": 1}), giver.put()

    assert giver.receive(eot) == End({"why": 1})
    assert giver.state is FlowState.FINACK
    assert taker.receive(late) is None
    assert taker.late == 1
    assert taker.receive(giver.end()) == End({})
    assert giver.state is taker.state is FlowState.FIN


def test_crossed_eots_end_both_sides():
    giver, taker = pair()
    one, two = giver.end(), taker.end()
    giver.receive(two)
    taker.receive(one)

    assert giver.state is taker.state is FlowState.FIN


def test_eot_in_answer_to_bot_is_a_refusal():
    client, server = FlowMachine("extract", 3), FlowMachine("inject", 3)
    server.receive(client.open())

    assert client.receive(server.refuse("no")) == End({"reason": "no"})
    assert client.state is FlowState.FIN


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (made("BOT", 5, direction="inject", credit=3), "may be a BOT"),
        (made("DAT", 5), "only the giver"),
        (made("PAY", 5, credit=4), "exceeds"),
        (made("PAY", 5, credit=-1), "credit -1"),
        (made("PAY", 5), "credit None"),
        (made("PAY", 5, credit=True), "credit True"),
        (made("PAY", 5, credit=1.0), "credit 1.0"),
    ],
)
def test_a_giver_rejects_what_breaks_the_protocol(data, rule):
    giver, _ = pair()

    with pytest.raises(RemoteFlowError, match=rule):
        giver.receive(data)


def test_a_taker_rejects_dat_without_credit_and_pay():
    _, taker = pair()

    with pytest.raises(RemoteFlowError, match="has none"):
        taker.receive(made("DAT", 5))
    with pytest.raises(RemoteFlowError, match="only the taker"):
        taker.receive(made("PAY", 6, credit=1))


@pytest.mark.parametrize(
    ("about", "rule"),
    [
        ({"direction": "extract", "credit": 3}, "of this side"),
        ({"credit": 3}, "neither"),
        ({"direction": ["inject"], "credit": 3}, "neither"),
        ({"direction": "inject", "credit": 0}, "credit 0"),
        ({"direction": "inject", "credit": 10**9}, "credit"),
        ({"direction": "inject", "credit": 4}, "raises the credit"),
    ],
)
def test_a_bot_of_no_use_breaks_the_protocol(about, rule):
    client = FlowMachine("extract", 3)
    client.open()

    with pytest.raises(RemoteFlowError, match=rule):
        client.receive(made("BOT", **about))


@pytest.mark.parametrize("flow", ["bot", "", None, 7, ["BOT"]])
def test_an_unknown_kind_is_malformed(flow):
    with pytest.raises(MalformedMessage):
        FlowMachine("extract", 3).receive(made(flow))


def test_what_this_side_may_not_do_is_refused_and_changes_nothing():
    giver, taker = pair()

    with pytest.raises(LocalFlowError, match="needs credit"):
        giver.put()
    with pytest.raises(LocalFlowError, match="taker"):
        taker.put()
    with pytest.raises(LocalFlowError, match="giver"):
        giver.pay()
    with pytest.raises(LocalFlowError, match="BOT"):
        giver.open()
    giver.receive(taker.pay())
    with pytest.raises(LocalFlowError, match="flow"):
        giver.put((), {"flow": "EOT"})
    with pytest.raises(MalformedMessage):
        giver.put((), {"a": object()})
    assert Message.decode(giver.put()).seqno == 1
    assert giver.credit == 2


@pytest.mark.parametrize(
    ("direction", "credit"), [("out", 1), ("extract", 0), ("inject", True)]
)
def test_a_flow_of_no_use_is_refused_when_it_is_made(direction, credit):
    with pytest.raises(MalformedMessage):
        FlowMachine(direction, credit)


@given(
    st.integers(1, 6), st.lists(st.sampled_from(["put", "take", "pay", "deliver"]), max_size=60)
)
def test_never_more_dats_are_under_way_than_the_agreed_credit(credit, steps):
    giver, taker = pair(credit, credit)
    to_taker, to_giver = [], []
    for step in steps:
        if step == "put" and giver.credit:
            to_taker.append(giver.put())
        elif step == "take" and taker.waiting:
            taker.taken()
        elif step == "pay" and taker.credit:
            to_giver.append((taker.credit, taker.pay()))
        elif step == "deliver":
            if to_taker:
                taker.receive(to_taker.pop(0))
            if to_giver:
                giver.receive(to_giver.pop(0)[1])
        paid = sum(amount for amount, _ in to_giver)
        held = giver.credit + taker.credit + taker.waiting + len(to_taker) + paid
        assert held == credit
