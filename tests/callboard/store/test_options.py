"""The options of stores: defaults of Broker 2.x, and what cannot be."""

from typing import Any

import pytest

from callboard.store import Backend, CloneOptions, StoreOptions
from callboard.store.backend.registry import make_backend


def test_the_defaults_are_those_of_broker() -> None:
    options = CloneOptions()

    assert options.tick_interval == 0.1
    assert options.heartbeat_interval == 5
    assert options.nack_timeout == 2
    assert options.connection_timeout == 100
    assert options.resync_interval == 10.0
    assert options.stale_interval == 300.0
    assert options.mutation_buffer_interval == 120.0
    assert options.max_get_delay == 5.0
    assert options.failover == StoreOptions().failover == "none"


@pytest.mark.parametrize(
    "options",
    [
        {"heartbeat_interval": 0},
        {"heartbeat_interval": 100},
        {"nack_timeout": 100},
        {"tick_interval": 0.0},
        {"tick_interval": float("nan")},
        {"buffer_limit": 0},
    ],
)
def test_times_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a store needs|tick_interval and buffer_limit"):
        StoreOptions(**options)


def test_there_is_no_failover_and_who_asks_for_one_is_told() -> None:
    with pytest.raises(ValueError, match="failover='raft' is not supported, only 'none'"):
        CloneOptions(failover="raft")


@pytest.mark.parametrize("kind", Backend)
def test_each_kind_of_backend_is_registered(kind, tmp_path):
    options = {"path": tmp_path / "a.db"} if kind is Backend.SQLite else None

    assert hasattr(make_backend(kind, options), "is_durable")
