"""An entity's takeover: its node pauses, another one continues, and the first is fenced."""

from scripts.drawings.picture import Picture
from scripts.drawings.sequence import Sequence


def draw() -> str:
    """Return the picture."""
    picture = Picture(
        "An entity’s takeover: node B claims the slot of node A, which can write nothing more."
    )
    chart = Sequence(
        picture, {"node A": 64, "database/table, fences, events": 268, "node B": 452}
    )
    chart.note("node A", "owns slot 12, epoch 7", kind="green")
    chart.message("node A", "database", "commit, epoch 7")
    chart.message("node A", "database", "sign of life")
    chart.note("node A", "stands still", kind="warm")
    chart.message("database", "node B", "A gives no sign")
    chart.note("node B", "silent for 2.1 s: out", kind="blue")
    chart.message("node B", "database", "slot 12: B, epoch 8")
    chart.message("node B", "database", "raise the fence to 8")
    chart.note("database", "compare-and-set: one wins", kind="blue")
    chart.message("database", "node B", "snapshot, events")
    chart.note("node B", "the entity answers", kind="green")
    chart.note("node A", "wakes", kind="warm")
    chart.message("node A", "database", "commit, epoch 7", kind="warm")
    chart.message("database", "node A", "fenced: not written", kind="warm")
    chart.note("node A", "answers nothing, joins again", kind="box")
    chart.end()
    picture.caption(
        chart.y + 6,
        "~A process that was killed is replaced sooner: on one machine the system proves its "
        "death. A node that closes ends what it does, commits, and hands its slots over.",
    )
    return picture.svg()
