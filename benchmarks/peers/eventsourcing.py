"""eventsourcing (PyPI): aggregates whose events are stored."""

from benchmarks.peers import environment
from benchmarks.processes import printed_rate

prepare = environment.prepare


def version() -> str:
    """Return the installed version."""
    return environment.version("eventsourcing")


def saved(count: int) -> float:
    """Measure saves of aggregates with one event of 80 bytes each."""
    return printed_rate(environment.program("eventsourcing_program.py", "save", str(count)))


def replayed(count: int) -> float:
    """Measure the events of one aggregate that are read in a second."""
    return printed_rate(environment.program("eventsourcing_program.py", "replay", str(count)))
