"""Local ask: an actor asks another one on the same node, one ask after the other.

Ours: inside a coroutine handler, `await ref.ask(i)`; the other actor's handler returns the
number. The time is taken inside the asking actor, after a tenth of the work as warm-up.

The peers do the same in one process, in their own fastest spelling:

- CAF, request: an event-based actor's `request(…).then(…)`, in C++ with as many workers as
  cores.
- CAF, send: two event-based actors returning a plain message to each other, without requests.
- xoscar, message: `await ref.echo(i)` with the reference that `create_actor` returned.
- xoscar, direct call: the same with a reference looked up in the process. xoscar then calls the
  method itself, with no message; it is listed because a user may do so, not because it is the
  same work.
- Thespian, simpleSystemBase: a ping-pong of plain messages (its actors cannot await an answer),
  on the caller's thread.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf, thespian_bases, xoscar


def ours(share: float = 1.0) -> float:
    """Return asks answered for each second."""
    from benchmarks import ours as program

    return program.local(program.Asker, program.Echo, int(200_000 * share))


MEASURE = Measure(
    title="local ask, actor to actor",
    unit="asks/s",
    subjects=(
        Subject("callboard", ours),
        Subject(
            "CAF, request",
            lambda share: caf.local("reqlocal", int(1_000_000 * share)),
            caf.prepare,
            against="callboard",
        ),
        Subject(
            "CAF, send",
            lambda share: caf.local("local", int(1_000_000 * share)),
            caf.prepare,
            against="callboard",
        ),
        Subject(
            "xoscar, message",
            lambda share: xoscar.local("local_ask", int(30_000 * share)),
            xoscar.prepare,
            against="callboard",
        ),
        Subject(
            "xoscar, direct call",
            lambda share: xoscar.local("local_call", int(300_000 * share)),
            xoscar.prepare,
            against="callboard",
        ),
        Subject(
            "Thespian, simpleSystemBase",
            lambda share: thespian_bases.ping_pong("simpleSystemBase", int(100_000 * share)),
            against="callboard",
        ),
    ),
)
