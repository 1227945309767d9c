"""The work of `callboard store`: a clone for as long as the command runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import typer

from callboard import Node
from callboard.broker.options import Configuration
from callboard.broker.tls import dialing_context
from callboard.cli.credentials import Credentials
from callboard.cli.failure import MISUSED, Failure
from callboard.cli.listening import catch_signals
from callboard.cli.values import from_text, to_json
from callboard.endpoint.hub import Hub
from callboard.store import Store, StoreEvent, attach_clone

LOOK_INTERVAL: Final = 0.1
"""Seconds between two looks whether a signal came."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """A store, and how to reach it.

    Attributes:
        name: of the store.
        peers: addresses of nodes to be linked with: `basp://HOST:PORT` as they are, or
            `HOST:PORT` of endpoints, with the encryption that these have by default.
        timeout: seconds for each of them, and for the master.
        credentials: shared secret and TLS.
        as_json: whether what is printed is JSON.
    """

    name: str
    peers: tuple[str, ...]
    timeout: float
    credentials: Credentials
    as_json: bool

    def get(self, key: str) -> None:
        """Print a value."""
        with self._clone() as clone:
            if not clone.exists(from_text(key)):
                raise Failure(
                    why=f"the store {self.name!r} has no key {key!r}",
                    step=f"list its keys with: callboard store keys {self.name}",
                )
            self._print(clone.get(from_text(key)))

    def put(self, key: str, value: str, expiry: float | None) -> None:
        """Set a value."""
        with self._clone() as clone:
            clone.put(from_text(key), from_text(value), expiry)
            if not clone.await_idle(self.timeout):
                raise Failure(
                    why=f"the master of {self.name!r} did not acknowledge it in time",
                    step="look whether it is there with: callboard store get",
                )

    def keys(self) -> None:
        """Print all keys."""
        with self._clone() as clone:
            for key in sorted(clone.keys(), key=str):
                self._print(key)

    def watch(self, prefix: str, count: int) -> None:
        """Print changes."""
        stop = threading.Event()
        with catch_signals(stop), self._clone() as clone, clone.changes(prefix) as queue:
            seen = 0
            while not stop.is_set() and not (count and seen >= count):
                event = queue.get(LOOK_INTERVAL)
                if event is not None:
                    seen += 1
                    self._tell(event)

    def _tell(self, event: StoreEvent) -> None:
        if self.as_json:
            typer.echo(to_json(event._asdict()))
        elif event.kind in ("insert", "update"):
            typer.echo(f"{event.kind}  {_text(event.key)}  {_text(event.value)}")
        else:
            typer.echo(f"{event.kind}  {_text(event.key)}")

    def _print(self, value: object) -> None:
        typer.echo(to_json(value) if self.as_json else _text(value))

    @contextmanager
    def _clone(self) -> Iterator[Store]:
        if not self.peers:
            raise Failure(
                why="no node was named", step="say --peer basp://HOST:PORT", code=MISUSED
            )
        with self._node() as node:
            for peer in self.peers:
                address = peer if _is_url(peer) else f"basp://{peer}"
                node.connect(address, self.timeout or 1.0)
            with attach_clone(Hub.of(node), self.name) as clone:
                if not clone.await_idle(self.timeout):
                    raise Failure(
                        why=f"no master of the store {self.name!r} was found",
                        step="name a node of its cluster with --peer",
                    )
                yield clone

    def _node(self) -> Node:
        """Make a node that speaks to the peers as they want it."""
        kinds = set(map(_is_url, self.peers))
        if len(kinds) > 1:
            raise Failure(
                why="some peers are basp:// addresses, some HOST:PORT of encrypted endpoints",
                step="name one of them: stores are found over any number of nodes",
                code=MISUSED,
            )
        proof = self.credentials
        if proof.tls is not None or kinds == {True}:
            return Node("callboard store", secret=proof.secret, tls=proof.tls)
        encryption = dialing_context(Configuration())
        return Node("callboard store", secret=proof.secret, tls=encryption)


def _is_url(peer: str) -> bool:
    return peer.startswith(("basp:", "basp+unix:"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else to_json(value)
