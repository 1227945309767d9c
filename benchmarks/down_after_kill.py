"""Down after a kill: from SIGKILL of a process until a monitor of an actor in it knows.

Ours, twice: over a direct link, and with two more processes forwarding between the monitor and
the killed node (three hops). Four processes in a line on this machine; the line is linked only
between neighbours. The time is taken from just before the signal is sent to when `.result()` of
the monitor's future returns in a plain thread.

CAF does the same over a direct link, from the same moment to when a `scoped_actor` receives its
`down_msg` (both clocks are the system's monotonic one). It has no figure for three hops: only
actors of directly connected nodes are reported down. xoscar has no monitors; Thespian's
convention notices a lost system after three check-ins of more than seven minutes.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf


def ours(_share: float = 1.0) -> float:
    """Return milliseconds over three hops."""
    from benchmarks import ours as program

    return program.milliseconds_to_down(hops=3)


def ours_direct(_share: float = 1.0) -> float:
    """Return milliseconds over a direct link."""
    from benchmarks import ours as program

    return program.milliseconds_to_down(hops=1)


MEASURE = Measure(
    title="down after SIGKILL",
    unit="ms",
    more_is_better=False,
    subjects=(
        Subject("callboard, three hops", ours),
        Subject("callboard, direct", ours_direct),
        Subject(
            "CAF, direct",
            lambda _share: caf.milliseconds_to_down(),
            caf.prepare,
            against="callboard, direct",
        ),
    ),
)
