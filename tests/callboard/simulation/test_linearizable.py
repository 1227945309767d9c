"""The search against all orders, for drawn histories; and what it says of wrong ones."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.simulation import (
    Counter,
    Elements,
    History,
    Lock,
    NotDecided,
    NotLinearizable,
    Queue,
    Register,
    linearizable,
)
from callboard.simulation.models import ANY, NEVER, OneOf, agrees

MODELS = {
    "register": (Register, ["read", "write", "cas", "create"]),
    "counter": (Counter, ["add", "read"]),
    "elements": (Elements, ["add", "remove", "contains", "read"]),
    "queue": (Queue, ["put", "get"]),
    "lock": (Lock, ["acquire", "release"]),
}


def no_time():
    return 0.0


def by_all_orders(model, operations):
    """Try each order of each choice of operations that happened: the definition itself."""
    known = [each for each in operations if each.outcome == "answered"]
    unknown = [each for each in operations if each.outcome in ("unknown", "open")]
    for chosen in range(1 << len(unknown)):
        happened = known + [each for i, each in enumerate(unknown) if chosen >> i & 1]
        if any(explains(model, order) for order in permutations(happened)):
            return True
    return False


def explains(model, order):
    for place, later in enumerate(order):
        for earlier in order[place + 1 :]:
            if earlier.outcome == "answered" and earlier.ended < later.began:
                return False
    state = model.start
    for each in order:
        state, answer = model.step(state, each.name, each.value)
        if answer is NEVER:
            return False
        if each.outcome == "answered" and not agrees(answer, each.answer):
            return False
    return True


@st.composite
def histories(draw):
    """Draw operations that overlap, with answers that a careless service may have given."""
    model, names = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    model = model()
    history = History(no_time)
    state = model.start
    running = []
    for _ in range(draw(st.integers(1, 14))):
        if running and draw(st.booleans()):
            operation, answer = running.pop(draw(st.integers(0, len(running) - 1)))
            if draw(st.integers(0, 9)) == 0:
                answer = draw(st.sampled_from([None, True, False, 0, 1, 2]))
            end = draw(st.sampled_from(["answered"] * 6 + ["unknown", "failed"]))
            if end == "answered":
                history.answered(operation, answer)
            else:
                getattr(history, end)(operation)
        elif len(history) < 6:
            name = draw(st.sampled_from(names))
            value = draw(st.integers(0, 2))
            if name == "cas":
                value = (value, draw(st.integers(0, 2)))
            operation = history.begin(name, value, client=len(history))
            if draw(st.integers(0, 3)):
                state, answer = model.step(state, name, value)
            else:
                _, answer = model.step(state, name, value)
            if name == "read" and isinstance(model, Elements):
                answer = sorted(state)
            running.append((operation, told(draw, answer)))
    return model, history


def told(draw, answer):
    """Return an answer as a client may be told it."""
    if isinstance(answer, OneOf):
        return draw(st.sampled_from(answer.answers))
    return None if answer is ANY or answer is NEVER else answer


@given(histories())
def test_the_search_says_what_all_orders_say(drawn):
    model, history = drawn
    operations = [each for each in history.operations if each.outcome != "failed"]

    if by_all_orders(model, operations):
        history.check(linearizable(model))
    else:
        with pytest.raises(NotLinearizable):
            history.check(linearizable(model))


def many(operations, keys, *, lost=0, wrong_at=None):
    """Return a history of 8 clients whose counters are right, but for one answer."""
    history = History(no_time)
    totals = dict.fromkeys(range(keys), 0)
    running = []
    for number in range(operations):
        key = number % keys
        begun = history.begin("add", 1 + number % 3, key=key, client=number % 8)
        totals[key] += begun.value
        running.append((begun, totals[key] - (number == wrong_at)))
        if len(running) == 8:
            ended, answer = running.pop(number * 5 % 8)
            if lost and number % 14 == 0:
                history.unknown(ended)
            else:
                history.answered(ended, answer)
    return history


def test_long_histories_take_few_steps():
    history = many(10_000, 100)

    history.check(linearizable(Counter(), step_limit=20_000))


def test_many_unknown_outcomes_take_few_steps():
    history = many(300, 1, lost=20)
    assert sum(each.outcome == "unknown" for each in history.operations) >= 20

    history.check(linearizable(Counter(), step_limit=500_000))


@pytest.mark.slow
def test_a_wrong_answer_among_thousands_is_shown_alone():
    history = many(2_000, 10, wrong_at=1_501)

    with pytest.raises(NotLinearizable) as failure:
        history.check(linearizable(Counter()))

    first, *drawn = str(failure.value).splitlines()
    assert first.endswith(" on 1 is possible for a Counter that is 300 after 150 earlier ones:")
    assert [line.split("->")[1].split()[0] for line in drawn] == ["301"]


def test_a_lost_update_is_drawn_as_the_two_that_overwrote_each_other():
    history = History(no_time)
    first = history.begin("add", 1, client="b")
    second = history.begin("add", 1, client="c")
    history.answered(first, 1)
    history.answered(second, 1)

    with pytest.raises(NotLinearizable) as failure:
        history.check(linearizable(Counter()))

    assert str(failure.value).splitlines()[1:] == [
        "  b  add 1 -> 1  |--------------------|             0.000000 to 0.000000 s",
        "  c  add 1 -> 1            |--------------------|   0.000000 to 0.000000 s",
    ]


def test_what_did_not_happen_may_not_be_seen():
    history = History(no_time)
    refused = history.begin("write", 7)
    history.failed(refused)
    history.check(linearizable(Register()))
    read = history.begin("read")
    history.answered(read, 7)

    with pytest.raises(NotLinearizable, match="read -> 7"):
        history.check(linearizable(Register()))


def test_what_got_no_answer_may_happen_long_after():
    history = History(no_time)
    lost = history.begin("write", 7)
    history.unknown(lost)
    for answer in (None, None, 7, 7):
        read = history.begin("read")
        history.answered(read, answer)
    history.check(linearizable(Register()))
    read = history.begin("read")
    history.answered(read, None)

    with pytest.raises(NotLinearizable):
        history.check(linearizable(Register()))


def test_a_search_that_gives_up_says_so_and_is_no_verdict():
    history = History(no_time)
    for value in range(12):
        history.begin("write", value, key="k")
    read = history.begin("read", key="k")
    history.answered(read, 99)

    with pytest.raises(NotDecided, match="no verdict for 'k' after 50 steps"):
        history.check(linearizable(Register(), step_limit=50))


def test_a_wrong_key_counts_though_another_is_not_decided():
    history = History(no_time)
    for value in range(12):
        history.begin("write", value, key="large")
    history.answered(history.begin("read", key="large"), 99)
    history.answered(history.begin("read", key="small"), 99)

    with pytest.raises(NotLinearizable, match="'small'"):
        history.check(linearizable(Register(), step_limit=50))


def test_keys_and_values_of_any_kind():
    history = History(no_time)
    for key in ([1], {"a": 1}, 1, True, None):
        write = history.begin("write", "x", key=key)
        history.answered(write)
        read = history.begin("read", key=key)
        history.answered(read, "x")

    history.check(linearizable(Register()))


@pytest.mark.parametrize("model", [Register(), Counter(), Elements(), Queue(), Lock()])
def test_a_word_that_a_model_does_not_know_is_named_with_those_it_knows(model):
    history = History(no_time)
    history.answered(history.begin("fly"), None)

    with pytest.raises(ValueError, match=r"has no operation 'fly'; it has \w+"):
        history.check(linearizable(model))
