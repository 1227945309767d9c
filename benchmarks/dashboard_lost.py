"""A killed node in the window: from SIGKILL of its process until the page says it is lost.

Four nodes in processes of their own on this machine, the page of the first one open in a
headless Chromium; the time ends when an observer of the page sees the text.
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
