"""What opens a state by its URL says what is wrong with it."""

import sys

import pytest

from callboard.entity.state.backends import open_leases, open_state, open_view
from callboard.errors import StateUnavailable


@pytest.mark.parametrize("opener", [open_state, open_leases, open_view])
def test_a_missing_package_is_named_with_what_installs_it(opener, monkeypatch):
    for room in ("entity.state", "lease"):
        monkeypatch.delitem(sys.modules, f"callboard.{room}.postgresql", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        StateUnavailable, match=r"psycopg.*pip install 'callboard\[postgresql\]'"
    ):
        opener("postgresql://me@localhost/shop", "writer")
