"""Some random lives of topics on every change."""

import pytest

from callboard.endpoint.filter_exchange import FilterExchange
from tests.simulation.rules import Violation
from tests.simulation.topic_life import TopicLife

#: A look-up of another core that was lost with a link.
FOUND_SOMETHING = (22,)

SEEDS = range(7000, 7012)


@pytest.mark.parametrize("seed", [*FOUND_SOMETHING, *SEEDS])
def test_random_lives_of_topics_break_no_rule(seed: int) -> None:
    TopicLife(seed, size=8).run()


def test_a_filter_that_is_not_repeated_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilterExchange, "tick", lambda _self, _now: [])
    monkeypatch.setattr(FilterExchange, "change", lambda *_: [])

    with pytest.raises(Violation, match="did not arrive"):
        _live_all()


def _live_all() -> None:
    for seed in SEEDS:
        TopicLife(seed, size=8).run()
