"""Frames a second while the window's table of 5,000 actors scrolls, a hundred rows a second.

A script moves the table at each frame of a headless Chromium, which shows 60 at most, to the
end and again from the beginning; rows are requested when they become visible. Beside it the
share of those frames in which the middle of the table showed a row, as a percentage.
"""

from benchmarks import dashboard
from benchmarks.measure import Measure, Subject

SECONDS = 6.0

MEASURE = Measure(
    title="frames of the window while 5,000 actors scroll",
    unit="frames/s",
    subjects=(
        Subject(
            "callboard",
            lambda share: dashboard.frames_a_second(max(1.0, SECONDS * share))[0],
            dashboard.prepare,
        ),
        Subject(
            "callboard, frames of 100 with rows",
            lambda share: dashboard.frames_a_second(max(1.0, SECONDS * share))[1],
            dashboard.prepare,
        ),
    ),
)
