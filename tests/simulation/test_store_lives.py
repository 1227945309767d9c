"""Some random lives of stores on every change, and bugs that they must find."""

from collections.abc import Callable
from typing import Any

import pytest

from callboard.simulation import Cluster, cluster_test
from callboard.store.machine.clone import Clone
from callboard.store.machine.master import Master
from callboard.store.store_actor import StoreActor
from tests.simulation.rules import Violation
from tests.simulation.store_life import FAULTS, StoreLife, live_stores


@cluster_test(seeds=range(7000, 7005), faults=FAULTS)
def test_random_lives_of_stores_break_no_rule(cluster: Cluster) -> None:
    StoreLife(cluster).run()


def carry_out_at_once(self: Any, effects: list[Any]) -> None:
    """Acknowledge what is not durable yet."""
    for effect in effects:
        if type(effect).__name__ == "Persist":
            self._persist(effect)
        else:
            self._execute_one(effect)


def persist_no_writers(self: Any) -> Any:
    """Forget in a crash how far writers were."""
    made = ORIGINAL_PERSIST(self)
    if made is not None:
        made.writers.clear()
    return made


def remember_no_answer(_self: Any, _who: Any, _request: int, *, inserted: bool) -> None:
    """Carry out a question again that was answered."""
    del inserted


def is_idle_when_connected(self: Any) -> bool:
    """Do not wait for acknowledgements."""
    return bool(self.is_connected)


ORIGINAL_PERSIST: Callable[[Any], Any] = Master._take_persist

BUGS = [
    (StoreActor, "_execute", carry_out_at_once, "not durable|is lost", 6),
    (Master, "_take_persist", persist_no_writers, "not between", 14),
    (Master, "_record_answer", remember_no_answer, "no clone won|won by all", 14),
    (Clone, "is_idle", property(is_idle_when_connected), "not durable", 22),
    (Clone, "consume_nil", lambda *_: None, "differs|was idle before", 43),
    (Master, "is_idle", property(lambda _self: True), "was idle before|differs", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "bug", "finding", "seed"), BUGS)
def test_a_planted_bug_is_found(
    kind: type, name: str, bug: Any, finding: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, bug)

    with pytest.raises(Violation, match=finding):
        _live_all((seed, *range(20)))


def _live_all(seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        run = live_stores.test.only(seed, {}, shrinks=False)
        if run.error is not None:
            raise run.error
