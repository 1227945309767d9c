"""A master, clones, and a transport between them, without nodes."""

import itertools
from typing import Any
from uuid import UUID

from callboard.store.machine.clone import Clone
from callboard.store.machine.command import Command, EntityId
from callboard.store.machine.master import Master
from callboard.store.machine.step import (
    Answer,
    Persist,
    ReportChanges,
    ReportRefused,
    SendRun,
    StoreSignal,
)


class Net:
    """A master and clones, and a transport that loses what `loses` says."""

    def __init__(self, clones: int = 2, **options: Any) -> None:
        self.now = 0.0
        numbers = itertools.count(1)
        self.master: Master | None = Master(EntityId(UUID(int=99), 1), **options)
        self.clones = [
            Clone(
                EntityId(UUID(int=i + 1), next(numbers)),
                lambda i=i: EntityId(UUID(int=i + 1), next(numbers)),
                0.0,
            )
            for i in range(clones)
        ]
        self.loses: Any = lambda _run: False
        self.persisted: list[Persist] = []
        self.answers: list[Answer] = []
        self.refused: list[ReportRefused] = []
        self.changes: list[Any] = []

    def do(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case SendRun():
                    self._transmit(effect)
                case Persist():
                    self.persisted.append(effect)
                case Answer():
                    self.answers.append(effect)
                case ReportRefused():
                    self.refused.append(effect)
                case ReportChanges():
                    self.changes += effect.changes

    def _transmit(self, effect: SendRun) -> None:
        if self.loses(effect.run):
            return
        if not effect.to_master:
            for clone in self.clones:
                self.do(clone.receive(effect.run, self.now))
        elif self.master is not None:
            self.do(self.master.receive(effect.run, self.now))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 0.1
            for machine in (self.master, *self.clones):
                if machine is not None:
                    self.do(machine.step(StoreSignal.TICK, self.now))

    def put(self, where: Any, **entries: Any) -> None:
        self.do(where.local([(Command.PUT, k, v, None) for k, v in entries.items()], self.now))

    def await_idle(self) -> bool:
        """Wait on all, as frontends do: a waiting clone requests acknowledgements."""
        for machine in (*self.clones, self.master):
            assert machine is not None
            self.do(machine.step(StoreSignal.HASTEN, self.now))
        assert self.master is not None
        return self.master.is_idle and all(clone.is_idle for clone in self.clones)

    def entries(self) -> list[dict[Any, Any]]:
        assert self.master is not None
        return [machine.entries for machine in (self.master, *self.clones)]
