"""What a node does with the outcome of a message that it sent to an owner of a slot."""

import pytest

from callboard.actors.errors import NodeUnreachable
from callboard.entity.router import PendingMessage


class Outcomes:
    """Stands for the router of a type, and records what it is told."""

    def __init__(self):
        self.told = []

    def handle_outcome(self, _waiting, _node, value, error, *, has_left):
        self.told.append((value, error, has_left))


@pytest.fixture
def outcomes():
    return Outcomes()


@pytest.fixture
def pending(outcomes):
    return PendingMessage(
        1, "k-1", 7, "message", None, is_urgent=False, since=0.0, router=outcomes
    )


@pytest.mark.parametrize(("message_id", "has_left"), [(0, False), (5, True)])
def test_a_lost_message_may_be_sent_again_only_if_it_never_left(
    pending, outcomes, message_id, has_left
):
    pending.message_id, lost = message_id, NodeUnreachable("lost")

    assert pending.set_exception(lost)
    assert not pending.set_exception(lost)

    assert outcomes.told == [(None, lost, has_left)]


def test_what_was_answered_has_left(pending, outcomes):
    assert pending.set_result("answer")
    assert not pending.set_result("another")

    assert outcomes.told == [("answer", None, True)]
