"""xoscar (PyPI)."""

from benchmarks.peers import environment
from benchmarks.processes import printed_rate, serving

prepare = environment.prepare


def version() -> str:
    """Return the installed version."""
    return environment.version("xoscar")


def program(*arguments: str) -> list[str]:
    """Build a command line."""
    return environment.program("xoscar_program.py", *arguments)


def local(mode: str, count: int) -> float:
    """Measure `local_ask` (messages), `local_call` (a direct call), `spawn` or `memory`."""
    return printed_rate(program(mode, str(count)))


def remote(mode: str, count: int) -> float:
    """Measure `remote_ask`, `flood` or `flood_gathered` between two processes."""
    with serving(program("serve")) as (_, address):
        return printed_rate(program(mode, str(count), address))
