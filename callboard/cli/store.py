"""`callboard store …`: read and write stores through a temporary clone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from callboard.cli.cli_error import CliError, UsageError
from callboard.cli.options import AccessOptions, command, noun, option
from callboard.cli.output import from_text, say, to_json
from callboard.cli.own_node import catch_signals

if TYPE_CHECKING:
    from callboard.store import Store, StoreEvent

#: Name of these commands' own node.
NAME: Final = "callboard store"

#: Seconds between checks for a signal.
POLL_SECONDS: Final = 0.1

app = noun()

Name = Annotated[str, typer.Argument(metavar="STORE", help="Its name.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="JSON, or plain text.")]


@dataclass(frozen=True, kw_only=True)
class StoreArguments(AccessOptions):
    """Access to a store.

    Attributes:
        peer: addresses of nodes or endpoints to link with.
        timeout: seconds for each of them, and for the master.
    """

    peer: list[str] | None = option(
        None,
        "basp://HOST:PORT of a node or endpoint; repeatable.",
        "--peer",
        metavar="ADDRESS",
    )
    timeout: float = option(10.0, "Seconds to reach peer and master.", min=0.0)

    @contextmanager
    def clone(self, name: str) -> "Iterator[Store]":
        """Attach a clone of a store.

        Raises:
            CliError: no node is given, or no master was found.
        """
        if not self.peer:
            raise UsageError(why="the peer is missing", step="use --peer basp://HOST:PORT")
        from callboard.store import attach_clone
        from callboard.topics.hub import Hub

        with self.open_node(NAME) as node:
            for peer in self.peer:
                address = peer if _is_url(peer) else f"basp://{peer}"
                node.connect(address, self.timeout or 1.0)
            with attach_clone(Hub.of(node), name) as clone:
                if not clone.await_idle(self.timeout):
                    reason = f"no master of the store {name!r} was found"
                    raise CliError(why=reason, step="pass a node of its cluster with --peer")
                yield clone

    def show(self, value: object) -> None:
        """Print a key or value."""
        say(to_json(value) if self.as_json else _text(value))


@dataclass(frozen=True, kw_only=True)
class PutOptions(StoreArguments):
    """Expiry of a value."""

    expiry: float = option(0.0, "Seconds until the key is removed; 0 for never.", min=0.0)


@dataclass(frozen=True, kw_only=True)
class WatchOptions(StoreArguments):
    """Number of the printed changes."""

    count: int = option(0, "End after this many changes; 0 for no end.", min=0)


@command(app)
def get(store: Name, key: Key, options: StoreArguments) -> None:
    """Print the value of a key; the exit code is 1 if there is none.

    \b
    Examples:
      callboard store get things colour --peer basp://127.0.0.1:4222
      callboard store get things colour --peer 127.0.0.1:9999
    """  # noqa: D301
    with options.clone(store) as clone:
        if not clone.exists(from_text(key)):
            reason = f"the store {store!r} has no key {key!r}"
            raise CliError(why=reason, step=f"list its keys with: callboard store keys {store}")
        options.show(clone.get(from_text(key)))


@command(app)
def put(
    store: Name,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON, or plain text.")],
    options: PutOptions,
) -> None:
    """Set the value of a key, and wait until the master has acknowledged it.

    \b
    Examples:
      callboard store put things colour '"red"' --peer basp://127.0.0.1:4222
      callboard store put things leader me --expiry 30 --peer basp://127.0.0.1:4222
    """  # noqa: D301
    with options.clone(store) as clone:
        clone.put(from_text(key), from_text(value), options.expiry or None)
        if not clone.await_idle(options.timeout):
            reason = f"the master of {store!r} did not acknowledge it in time"
            raise CliError(why=reason, step="check the value with: callboard store get")


@dataclass(frozen=True, kw_only=True)
class ImportOptions(StoreArguments):
    """Target of the imported entries."""

    into: Path | None = option(
        None, "New file for a callboard master, instead of STORE.", metavar="THINGS.db"
    )


@command(app, "import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of a Zeek Broker master.")],
    options: ImportOptions,
    store: Annotated[
        str, typer.Argument(metavar="[STORE]", help="A running store, reached with --peer.")
    ] = "",
) -> None:
    """Import the entries of a SQLite file of Zeek Broker.

    Expired entries are skipped. The file is not changed.

    \b
    Examples:
      callboard store import broker.db --into things.db
      callboard store import broker.db things --peer basp://127.0.0.1:4222
    """  # noqa: D301
    if bool(store) == bool(options.into):
        step = "use --into THINGS.db, or STORE and --peer ADDRESS"
        raise UsageError(why="the import needs exactly one target", step=step)
    from callboard.broker.store_file import read_store_file, remaining, write_store_file
    from callboard.store import BackendFailure

    try:
        entries = read_store_file(file)
        valid = [entry for entry in entries if (left := remaining(entry)) is None or left > 0.0]
        if options.into:
            write_store_file(valid, options.into)
    except BackendFailure as error:
        raise CliError(why=str(error), step="check the file with sqlite3") from error
    if store:
        with options.clone(store) as clone:
            for entry in valid:
                clone.put(entry.key, entry.value, remaining(entry))
            if not clone.await_idle(options.timeout):
                reason = f"the master of {store!r} did not acknowledge all entries in time"
                raise CliError(why=reason, step="import again with a longer --timeout")
    expired = len(entries) - len(valid)
    tail = f", {expired:,} had expired" if expired else ""
    target = store or options.into
    say(
        to_json({"imported": len(valid), "expired": expired})
        if options.as_json
        else f"{len(valid):,} entries of {file} are in {target}{tail}"
    )


@command(app)
def keys(store: Name, options: StoreArguments) -> None:
    """Print all keys, one per line.

    \b
    Examples:
      callboard store keys things --peer basp://127.0.0.1:4222
    """  # noqa: D301
    with options.clone(store) as clone:
        for key in sorted(clone.keys(), key=str):
            options.show(key)


@command(app)
def watch(
    store: Name,
    options: WatchOptions,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Prefix of the keys; default: all.")
    ] = "",
) -> None:
    """Print changes as they happen, until Ctrl-C or SIGTERM.

    \b
    Examples:
      callboard store watch things --peer basp://127.0.0.1:4222
      callboard store watch things sensors/ --json --peer basp://127.0.0.1:4222 | jq .value
    """  # noqa: D301
    with catch_signals() as stop, options.clone(store) as clone, clone.changes(prefix) as queue:
        count = 0
        while not stop.is_set() and not (options.count and count >= options.count):
            event = queue.get(POLL_SECONDS)
            if event is not None:
                count += 1
                say(to_json(event._asdict()) if options.as_json else _line(event))


def _line(event: "StoreEvent") -> str:
    """Return a change as a line of text."""
    words = [event.kind, _text(event.key)]
    if event.kind in ("insert", "update"):
        words.append(_text(event.value))
    return "  ".join(words)


def _is_url(peer: str) -> bool:
    """Return whether a peer is an address of BASP."""
    return peer.startswith(("basp:", "basp+unix:"))


def _text(value: object) -> str:
    """Return a key or value as text."""
    return value if isinstance(value, str) else to_json(value)
