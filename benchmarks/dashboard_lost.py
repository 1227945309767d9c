"""A killed node on the dashboard: from SIGKILL until the page shows that it is lost.

Four nodes run in separate processes on this machine, and the page of the first one is open in a
headless Chromium. The time ends when an observer in the page sees the text.
"""

from benchmarks import dashboard
from benchmarks.measure import Measure, Subject

MEASURE = Measure(
    title="a killed node is shown as lost",
    unit="ms",
    more_is_better=False,
    subjects=(
        Subject(
            "callboard",
            lambda _share: dashboard.milliseconds_to_lost(),
            dashboard.prepare,
        ),
    ),
)
