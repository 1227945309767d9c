"""Thespian's forms of a convention's address."""

import pytest

from callboard.actors.errors import InvalidAddress
from callboard.convention.membership import convention_endpoints, endpoint_of


@pytest.mark.parametrize(
    ("value", "endpoints"),
    [
        (None, []),
        ("", []),
        ("10.0.0.1:1901", [("10.0.0.1", 1901)]),
        ("10.0.0.1", [("10.0.0.1", 1900)]),
        ("localhost:1901", [("127.0.0.1", 1901)]),
        (":1901", [("127.0.0.1", 1901)]),
        (("", 1901), [("127.0.0.1", 1901)]),
        (["host", 1901], [("host", 1901)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
        ([("a", 1), "b:2"], [("a", 1), ("b", 2)]),
    ],
)
def test_all_forms_are_read(value, endpoints):
    assert convention_endpoints(value) == endpoints


@pytest.mark.parametrize("value", [17, "host:port", [None], {"host": 1}])
def test_other_forms_are_refused(value):
    with pytest.raises(InvalidAddress):
        convention_endpoints(value)


def test_one_address_is_read_alike():
    assert endpoint_of("a:7") == ("a", 7)
