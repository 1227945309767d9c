"""First paint of the window: a browser that was never here opens the link of a page.

A fresh headless Chromium asks a node of a cluster of four, in separate processes on this the
figure is its first contentful paint (the performance API), from the click on the link: the
redirect that puts the token into a cookie is in it.
"""

from benchmarks import dashboard
from benchmarks.measure import Measure, Subject

MEASURE = Measure(
    title="first contentful paint of the window",
    unit="ms",
    more_is_better=False,
    subjects=(
        Subject(
            "callboard",
            lambda _share: dashboard.milliseconds_to_paint(),
            dashboard.prepare,
        ),
    ),
)
