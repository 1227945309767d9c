"""Ballots: who is voted out, and which votes count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.entity.machine.ballot_machine import (
    BALLOT_SECONDS,
    AskVotes,
    BallotMachine,
    BallotSubject,
    Suspected,
)

SUBJECT = BallotSubject("x", 3)


def begun(voters: str = "abcx") -> tuple[BallotMachine, int]:
    """A machine of `a` with a ballot on `x`, and the ballot's number."""
    machine = BallotMachine("a")
    (asked,) = machine.lost(SUBJECT, set(voters), 0.0)
    assert isinstance(asked, AskVotes)
    return machine, asked.ballot


def test_all_voters_but_the_two_concerned_are_asked() -> None:
    machine = BallotMachine("a")
    assert machine.lost(SUBJECT, set("abcx"), 0.0) == [AskVotes(1, SUBJECT, ("b", "c"))]


def test_more_than_half_of_the_voters_have_to_agree() -> None:
    machine, ballot = begun()
    assert machine.voted(ballot, "b", 0.1, is_out_of_reach=True) == []
    assert machine.voted(ballot, "b", 0.1, is_out_of_reach=True) == []
    assert machine.voted(ballot, "c", 0.2, is_out_of_reach=True) == [Suspected(SUBJECT)]


@pytest.mark.parametrize("voters", ["ax", "ab", "a", "bcx"])
def test_with_fewer_than_three_voters_nobody_is_voted_out(voters: str) -> None:
    assert BallotMachine("a").lost(SUBJECT, set(voters), 0.0) == []


def test_three_voters_are_enough_and_the_subject_is_one_of_them() -> None:
    machine, ballot = begun("abx")
    assert machine.voted(ballot, "x", 0.1, is_out_of_reach=True) == []
    assert machine.voted(ballot, "b", 0.1, is_out_of_reach=True) == [Suspected(SUBJECT)]


def test_a_vote_of_an_earlier_ballot_does_not_count() -> None:
    machine, ballot = begun("abx")
    machine.reached("x")
    assert machine.voted(ballot, "b", 0.1, is_out_of_reach=True) == []
    machine.lost(SUBJECT, set("abx"), 0.2)
    assert machine.voted(ballot, "b", 0.3, is_out_of_reach=True) == []
    assert machine.voted(ballot + 1, "b", 0.3, is_out_of_reach=True) == [Suspected(SUBJECT)]


def test_a_late_vote_does_not_count() -> None:
    machine, ballot = begun("abx")
    assert machine.voted(ballot, "b", BALLOT_SECONDS, is_out_of_reach=True) == []
    assert machine.key() == (1, ())


@given(st.lists(st.tuples(st.sampled_from("abcdxy"), st.booleans()), max_size=12))
def test_only_a_majority_of_the_voters_votes_out(votes: list[tuple[str, bool]]) -> None:
    machine, ballot = begun("abcdx")
    ayes = {"a"}
    for voter, is_aye in votes:
        done = machine.voted(ballot, voter, 0.1, is_out_of_reach=is_aye)
        ayes |= {voter} & set("bcd") if is_aye else set()
        assert bool(done) == (len(ayes) == 3)
        if done:
            return
    assert len(ayes) < 3
