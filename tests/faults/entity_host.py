"""A process that hosts ledgers: `python -m tests.faults.entity_host CLIENT STATE [OPTION…]`.

Links with the client's node, prints a line once it is a member, and ends when it is killed or
its input ends. With the option `rows` it hosts alarms and a work queue as well. With `stop` it
stops itself (SIGSTOP) inside its next commit whenever it gets SIGUSR1, holding the locks.
"""

import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from callboard import Entity, Node, event, handler, message


@message("faults.Entry")
@dataclass(frozen=True)
class Entry:
    number: int


class Ledger(Entity):
    """Keeps the numbers that it was sent."""

    name = "faults.Ledger"

    def __init__(self) -> None:
        self.numbers: list[int] = []

    @handler
    def on_entry(self, msg: Entry) -> int:
        self.persist(msg)
        return len(self.numbers)

    @event
    def on_kept(self, event: Entry) -> None:
        self.numbers.append(event.number)

    @handler(read_only=True)
    def on_text(self, msg: str) -> list[int]:
        return self.numbers


@message("faults.SetAlarm")
@dataclass(frozen=True)
class SetAlarm:
    number: int
    after: float


@message("faults.Ring")
@dataclass(frozen=True)
class Ring:
    number: int


class Alarm(Entity):
    """Keeps the numbers that reminders brought it."""

    name = "faults.Alarm"

    def __init__(self) -> None:
        self.rung: list[int] = []

    @handler
    def on_set(self, msg: SetAlarm) -> None:
        self.remind(f"alarm {msg.number}", Ring(msg.number), after=msg.after)

    @handler
    def on_ring(self, msg: Ring) -> None:
        self.persist(msg)

    @event
    def on_rung(self, event: Ring) -> None:
        self.rung.append(event.number)

    @handler(read_only=True)
    def on_text(self, msg: str) -> list[int]:
        return self.rung


@message("faults.Ticket")
@dataclass(frozen=True)
class Ticket:
    sender: int
    number: int


class Tickets(Entity):
    """Counts tickets, and keeps who sent which."""

    name = "faults.Tickets"

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[list[int]] = []

    @handler
    def on_ticket(self, msg: Ticket) -> int:
        self.persist(msg)
        return self.count

    @event
    def on_taken(self, event: Ticket) -> None:
        self.count += 1
        self.kept.append([event.sender, event.number])

    @handler(read_only=True)
    def on_text(self, msg: str) -> list[list[int]] | int:
        return self.kept if msg == "all" else self.count


def _stop_inside_commits() -> None:
    """Make SIGUSR1 stop this process inside its next commit on PostgreSQL."""
    from callboard.entity.state.postgresql import PostgresqlState

    write, wanted = PostgresqlState._write_others, []

    def stop(state: Any, batch: Any, connection: Any) -> None:
        write(state, batch, connection)
        if wanted:
            wanted.clear()
            connection.execute("SELECT 1").fetchone()  # all before it has been done
            os.kill(os.getpid(), signal.SIGSTOP)

    PostgresqlState._write_others = stop  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))


def main() -> None:
    """Run until the input ends."""
    client, state, *options = sys.argv[1:]
    if "stop" in options:
        _stop_inside_commits()
    with Node() as node:
        node.connect(client)
        node.host(Ledger, state=state)
        node.host(Tickets, state=state)
        if "rows" in options:
            node.host(Alarm, state=state)
            node.queue("faults", state=state)
        print(node.node_id.hex(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
