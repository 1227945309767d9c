"""The cost of an open dashboard: processor time of the busiest of four nodes, 5,000 actors.

A headless Chromium shows the table of all actors, sorted by their mailboxes; a few actors of
each node work, so rows change. The same cluster is measured with the page closed, and
without a page: the difference is the cost of the open page. Each case takes twenty seconds.
"""

from benchmarks import dashboard
from benchmarks.measure import Measure, Subject

SECONDS = 20.0

MEASURE = Measure(
    title="processor time of a node, 5,000 actors on four nodes",
    unit="% of a core",
    more_is_better=False,
    subjects=(
        Subject(
            "callboard, page open",
            lambda share: dashboard.percent_of_a_core(SECONDS * share, is_open=True),
            dashboard.prepare,
        ),
        Subject(
            "callboard, page closed",
            lambda share: dashboard.percent_of_a_core(SECONDS * share / 2),
        ),
        Subject(
            "callboard, no dashboard",
            lambda share: dashboard.percent_of_a_core(SECONDS * share / 2, has_page=False),
        ),
    ),
)
