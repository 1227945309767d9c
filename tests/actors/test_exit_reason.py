"""Reasons of an actor's end, and their numbers on the wire."""

import pytest

from callboard import ExitReason


def test_each_reason_has_a_number_of_its_own_that_leads_back_to_it():
    assert len({reason.ordinal for reason in ExitReason}) == len(ExitReason)
    for reason in ExitReason:
        assert ExitReason.from_ordinal(reason.ordinal) is reason


@pytest.mark.parametrize("number", [-1, 6, 7, 8, 2**63])
def test_an_unknown_number_is_read_as_an_error(number):
    assert ExitReason.from_ordinal(number) is ExitReason.ERROR


def test_the_numbers_are_those_of_earlier_versions():
    assert [reason.ordinal for reason in ExitReason] == [0, 1, 2, 3, 4, 5]
