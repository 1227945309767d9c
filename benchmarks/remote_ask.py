"""Remote ask: an actor in another process is asked and answers, one ask after the other.

Ours, twice: `await ref.ask(i)` inside a coroutine handler, and `ref.ask(i).result()` from a
plain thread outside of any actor. Two processes on this machine, TCP over loopback.

The peers do the same:

- CAF, actor: an event-based actor's `request(…).then(…)`, default configuration. Its idle
  workers sleep between polls, which bounds this figure, not its protocol; a user gets it all
  the same.
- CAF, thread: `scoped_actor` with `request(…).receive(…)`, its way of asking from a plain
  thread.
- xoscar: `await ref.echo(i)` inside an actor, two pools.
- Thespian, multiprocTCPBase: a ping-pong of plain messages between two actors, which are
  processes.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf, thespian_bases, xoscar


def ours(share: float = 1.0) -> float:
    """Return asks from inside a coroutine handler answered for each second."""
    from benchmarks import ours as program

    return program.remote(program.Asker, "echo", int(20_000 * share))


def ours_from_thread(share: float = 1.0) -> float:
    """Return asks from a plain thread answered for each second."""
    from benchmarks import ours as program

    return program.remote_from_thread(int(20_000 * share))


MEASURE = Measure(
    title="remote ask, sequential",
    unit="asks/s",
    subjects=(
        Subject("callboard, actor", ours),
        Subject("callboard, thread", ours_from_thread),
        Subject(
            "CAF, actor",
            lambda share: caf.remote("rr", int(8_000 * share)),
            caf.prepare,
            against="callboard, actor",
        ),
        Subject(
            "CAF tuned, actor",
            lambda share: caf.remote("rr", int(20_000 * share), *caf.TUNED),
            caf.prepare,
            against="callboard, actor",
        ),
        Subject(
            "CAF, thread",
            lambda share: caf.remote("rrblock", int(8_000 * share)),
            caf.prepare,
            against="callboard, thread",
        ),
        Subject(
            "xoscar",
            lambda share: xoscar.remote("remote_ask", int(8_000 * share)),
            xoscar.prepare,
            against="callboard, actor",
        ),
        Subject(
            "Thespian, multiprocTCPBase",
            lambda share: thespian_bases.ping_pong("multiprocTCPBase", int(3_000 * share)),
            against="callboard, actor",
        ),
    ),
)
