"""`callboard entity …`: inspect entities and their events, and move them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from callboard.cli.cli_error import CliError, UsageError, explained
from callboard.cli.options import JsonOptions, command, flag, noun, option
from callboard.cli.output import cell_text, columns, say, to_json
from callboard.cli.work.cluster_options import Address, ClusterOptions

if TYPE_CHECKING:
    from callboard.entity.journal.journal import Journal
    from callboard.entity.state.sql import SqlView

app = noun()

#: Default number of printed events.
_SHOWN: Final = 100

#: Slots of a type; copied from `callboard.entity.machine.table`, which is slow to import.
SLOTS: Final = 256

#: Default number of listed entities of a running cluster.
_LISTED: Final = 100

Key = Annotated[str, typer.Argument(metavar="KEY", help="Its key, or basp:///TYPE/KEY.")]


@dataclass(frozen=True, kw_only=True)
class StateOptions(JsonOptions):
    """The state store to read."""

    state: str = option(
        ..., "The store of the events: sqlite:FILE or postgresql://….", metavar="URL"
    )
    as_json: bool = flag("Print JSON, one object per line.", "--json")

    @contextmanager
    def view(self) -> Iterator["SqlView"]:
        """Open the state store for reading.

        Raises:
            CliError: the state store is missing, or the file is not a state store.
        """
        from callboard.entity.state.backends import open_view
        from callboard.lease.errors import StorageError

        with explained((StorageError, ValueError), "pass the --state of the hosts"):
            view = open_view(self.state)
            try:
                yield view
            finally:
                view.close()


@dataclass(frozen=True, kw_only=True)
class TypedOptions(StateOptions):
    """The type of the entities."""

    type: str = option(
        "", "The type; required if the state has several.", "--type", metavar="TYPE"
    )

    def find(self, view: "SqlView", key: str) -> tuple[str, str]:
        """Return type and key of an entity that has events or a snapshot.

        Raises:
            CliError: there is no such entity, or its type is ambiguous.
        """
        from callboard.entity.reference import PREFIX, entity_parts

        name, parts = self.type, entity_parts(key) if key.startswith(PREFIX) else None
        if parts is not None:
            name, key = parts
        name = checked_type(view, name)
        if not view.last_number(name, key):
            reason = f"{name} has no entity {key!r} with events"
            raise CliError(why=reason, step="see: callboard entity ls --state URL --type TYPE")
        return name, key


def checked_type(view: "SqlView", name: str) -> str:
    """Return the name of a type in a state; the only one by default.

    Raises:
        CliError: the type is missing, or there are several.
    """
    types = list(view.types())
    if name in types or (not name and len(types) == 1):
        return name or types[0]
    if not types:
        raise CliError(why="the state has no entities yet", step="host some, and send to them")
    choices = ", ".join(types[:20])
    if name:
        raise UsageError(why=f"the state has no type {name!r}", step=f"there are {choices}")
    raise UsageError(why="the state has several types", step=f"use --type, one of {choices}")


@dataclass(frozen=True, kw_only=True)
class LsOptions(ClusterOptions):
    """Selection of the list."""

    state: str = option(
        "",
        "List a state store instead of a running cluster: sqlite:FILE, postgresql://….",
        metavar="URL",
    )
    type: str = option("", "List the entities of a type.", "--type", metavar="TYPE")
    after: str = option("", "Only keys after this one, with --state.", metavar="KEY")
    limit: int = option(_LISTED, "Most rows to print.", min=1, max=10_000)


@command(app, "ls")
def list_them(
    options: LsOptions,
    address: Annotated[
        str, typer.Argument(metavar="[ADDRESS]", help="basp://HOST:PORT of any node.")
    ] = "",
) -> None:
    """List the types of entities and their hosts; with --type, the entities.

    For a running cluster: the nodes that host a type, with their numbers of slots and of active
    entities; with --type, the active entities. For a state: all types; with --type, all keys.

    \b
    Examples:
      callboard entity ls basp://127.0.0.1:4222
      callboard entity ls basp://127.0.0.1:4222 --type shop.Cart --json
      callboard entity ls --state sqlite:shop.db
      callboard entity ls --state sqlite:shop.db --type shop.Cart --after u-17
    """  # noqa: D301
    if bool(options.state) == bool(address):
        raise UsageError(
            why="either a cluster or a state can be listed",
            step="pass the ADDRESS of a node, or --state URL",
        )
    if options.state:
        _list_state(options)
    elif options.type:
        _list_rows(options, address, "entity_cells", _CELLS, "is active")
    else:
        _list_rows(options, address, "entities", _TYPES, "is hosted")


_TYPES: Final = ("node", "type", "state", "slots", "active", "activated", "events", "moves")
_CELLS: Final = ("node", "type", "key", "slot", "number", "depth", "idle")


def _list_rows(
    options: LsOptions, address: str, part: str, head: tuple[str, ...], state: str
) -> None:
    """Print rows of a table of all nodes.

    Raises:
        UsageError: no node hosts the type.
    """
    from callboard.cli.work.entity_move import hosted_type
    from callboard.kernel.tables import ReadPart

    inspection = options.ask(address, ReadPart(part, options.type, limit=options.limit))
    table_rows = [
        {"node": answer.name or answer.node[:12], **row}
        for answer in inspection.nodes
        if answer.answer is not None
        for row in answer.answer.rows
    ][: options.limit]
    silent = {
        answer.name or answer.node[:12]: answer.error
        for answer in inspection.nodes
        if answer.error
    }
    count = sum(answer.answer.count for answer in inspection.nodes if answer.answer is not None)
    rows = [[cell_text(row[name]) for name in head] for row in table_rows]
    numbers = [
        i for i, name in enumerate(head) if table_rows and type(table_rows[0][name]) is not str
    ]
    lines = [columns([name.upper() for name in head], rows, right=numbers)] if rows else []
    if not rows:
        if options.type and not silent:
            hosted_type(address, "", options, options.type, is_key=False)
        lines.append(
            f"no entity of {options.type} {state}" if options.type else f"none {state}"
        )
    if count > len(table_rows):
        lines.append(f"… {count - len(table_rows):,} more; --limit shows them")
    lines += [f"{name} did not answer: {error}" for name, error in silent.items()]
    options.say({"rows": table_rows, "silent": silent}, "\n".join(lines))


def _list_state(options: LsOptions) -> None:
    """Print the types of a state, or the keys of a type."""
    reading = StateOptions(state=options.state, as_json=options.as_json)
    with reading.view() as view:
        if options.type:
            name = checked_type(view, options.type)
            keys = view.keys(name, options.after, options.limit + 1)
            table_rows = [
                {"type": name, "key": key, "number": view.last_number(name, key)}
                for key in keys[: options.limit]
            ]
            more = len(keys) > options.limit
            head = ("TYPE", "KEY", "EVENTS")
        else:
            table_rows = [
                {
                    "type": name,
                    "events": view.last_position(name),
                    "kinds": sorted(kind for kind, _ in view.kinds(name)),
                }
                for name in view.types()
            ]
            more, head = False, ("TYPE", "EVENTS", "KINDS")
    if options.as_json:
        say(to_json({"rows": table_rows}))
        return
    rows = [
        [
            ", ".join(sorted(set(v))) if isinstance(v, list) else cell_text(v)
            for v in row.values()
        ]
        for row in table_rows
    ]
    say(columns(head, rows) if rows else "nothing is stored")
    if more:
        say(f"… there are more; continue with --after {table_rows[-1]['key']!r}")


@dataclass(frozen=True, kw_only=True)
class WhereOptions(ClusterOptions):
    """The type of the entities."""

    type: str = option(
        "", "The type; required if the cluster has several.", "--type", metavar="TYPE"
    )


@command(app)
def where(address: Address, key: Key, options: WhereOptions) -> None:
    """Print the node that owns a key, and whether its entity is active.

    \b
    Examples:
      callboard entity where basp://127.0.0.1:4222 u-17 --type shop.Cart
      callboard entity where basp://127.0.0.1:4222 basp:///shop.Cart/u-17 --json
    """  # noqa: D301
    from callboard.cli.work.entity_move import hosted_type, owner_of
    from callboard.entity.machine.table import slot_of
    from callboard.kernel.tables import ReadPart

    name, key = hosted_type(address, key, options, options.type)
    slot = slot_of(key)
    node, row = owner_of(address, name, slot, options)
    keys = options.ask(address, ReadPart("entity_cells", name, search=key, limit=10_000))
    lives = any(
        cell["key"] == key
        for answer in keys.nodes
        if answer.answer is not None and answer.node == node.node
        for cell in answer.answer.rows
    )
    line = {
        "type": name,
        "key": key,
        "slot": slot,
        "epoch": row["epoch"],
        "node": node.name,
        "node_id": node.node,
        "active": lives,
    }
    state = "is active" if lives else "is not active"
    text = f"{name}/{key}: slot {slot}, epoch {row['epoch']}, on {node.name} ({node.node})"
    options.say(line, f"{text}; it {state}")


@dataclass(frozen=True, kw_only=True)
class MoveOptions(WhereOptions):
    """The slots to move, and their new host."""

    to: str = option("", "The new host: its name or id.", metavar="NODE")
    back: bool = flag(
        "Undo earlier moves: the nodes distribute the slots as by default.", "--back"
    )
    slots: str = option("", "Slots instead of keys: 3,17,40-59.", metavar="SLOTS")


@command(app)
def move(
    address: Address,
    options: MoveOptions,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Keys; their whole slots are moved."),
    ] = None,
) -> None:
    """Move slots of entities to another host, and wait for the end of the move.

    Entities finish their handlers and commit; messages to them wait, in order. The slots stay
    on that host while it is a member, or until --back. Needs the right `host` for the type.

    \b
    Examples:
      callboard entity move basp://127.0.0.1:4222 u-17 --type shop.Cart --to bank
      callboard entity move basp://127.0.0.1:4222 --slots 0-127 --to bank
      callboard entity move basp://127.0.0.1:4222 --slots 0-255 --back --json
    """  # noqa: D301
    from callboard.cli.work.entity_move import MoveRequest, move_slots

    if bool(options.to) == options.back:
        raise UsageError(why="slots move to a host, or back", step="use --to NODE, or --back")
    if bool(keys) == bool(options.slots):
        raise UsageError(why="keys or slots move", step="pass keys, or --slots 3,17,40-59")
    slots = None if keys else parse_slots(options.slots)
    request = MoveRequest(options.type, keys or [], slots, options.to)
    moved = move_slots(address, request, options)
    location = f"now on {moved['node']}" if options.to else "no longer bound to a node"
    count = len(moved["slots"])
    verb = "slot is" if count == 1 else "slots are"
    options.say(moved, f"{moved['type']}: {count} {verb} {location}")


def parse_slots(text: str) -> list[int]:
    """Return the slot numbers in a text such as `3,17,40-59`.

    Raises:
        UsageError: the text has another form.
    """
    slots: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        bounds = [first, last] if dash else [first, first]
        if not all(
            bound.isascii() and bound.isdecimal() and len(bound) < 4 for bound in bounds
        ):
            raise UsageError(
                why=f"{text!r:.100} are not slots", step="write them like 3,17,40-59"
            )
        start, end = map(int, bounds)
        if not start <= end < SLOTS:
            raise UsageError(
                why=f"slots are 0 to {SLOTS - 1}", step="write them like 3,17,40-59"
            )
        slots.update(range(start, end + 1))
    return sorted(slots)


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(TypedOptions):
    """Selection of the printed events."""

    after: int = option(0, "Only events after this number.", min=0)
    limit: int = option(_SHOWN, "Most events to print.", min=1)


@command(app)
def history(key: Key, options: HistoryOptions) -> None:
    """Print the events of an entity: number, time, kind and fields.

    \b
    Examples:
      callboard entity history u-17 --state sqlite:shop.db
      callboard entity history u-17 --state sqlite:shop.db --type shop.Cart --after 100
      callboard entity history basp:///shop.Cart/u-17 --state sqlite:shop.db --json | jq .fields
    """  # noqa: D301
    with options.view() as view:
        name, key = options.find(view, key)
        events = view.events(name, key, options.after, options.limit + 1)
        for stored in events[: options.limit]:
            _print_event(options, name, stored)
        if not options.as_json:
            if len(events) > options.limit:
                last = events[options.limit - 1].number
                say(f"… there are more; continue with --after {last}", err=True)
            elif not events:
                say("no events after that number; older ones may have been deleted", err=True)


def _print_event(options: StateOptions, name: str, stored: Any) -> None:
    """Print an event as it is stored."""
    from callboard.entity.journal.entry import Entry, raw_event

    raw, time = raw_event(stored), Entry.moment(stored.time_ms)
    row = {
        "type": name,
        "key": stored.key,
        "number": stored.number,
        "position": stored.position,
        "time": time.isoformat(timespec="milliseconds"),
        "epoch": stored.epoch,
        "kind": raw.kind,
        "version": raw.version,
        "fields": raw.fields,
    }
    text = f"{row['time']}  {stored.key}  {stored.number}  {raw.kind}  {to_json(raw.fields)}"
    options.say(row, text)


@dataclass(frozen=True, kw_only=True)
class RemindersOptions(TypedOptions):
    """Selection of the parked reminders to start."""

    start: str = option("", "Restart the reminders of this entity.", "--start", metavar="KEY")
    name: str = option("", "Restart only the reminder with this name.", metavar="NAME")


@command(app)
def reminders(options: RemindersOptions) -> None:
    """Print the parked reminders of a type, during which processes have crashed.

    \b
    Examples:
      callboard entity reminders --state sqlite:shop.db
      callboard entity reminders --state sqlite:shop.db --type shop.Cart --start u-17
    """  # noqa: D301
    from callboard.entity.journal.entry import Entry
    from callboard.entity.state.backends import open_state
    from callboard.lease.errors import StorageError

    with options.view() as view:
        name = checked_type(view, options.type)
        parked = [] if options.start else view.parked_reminders(name)
    for reminder in parked:
        due = Entry.moment(reminder.due_ms).isoformat(timespec="milliseconds")
        row = {
            "type": name,
            "key": reminder.key,
            "name": reminder.name,
            "due": due,
            "body": reminder.body,
        }
        options.say(row, f"{due}  {reminder.key}  {reminder.name}  {reminder.body}")
    if not options.start:
        if not parked and not options.as_json:
            say("no reminder is parked", err=True)
        return
    with explained((StorageError, ValueError), "give the --state that nodes host with"):
        state = open_state(options.state, f"cli-{uuid4().hex}")
        try:
            count = state.start_reminders(name, options.start, options.name or None)
        finally:
            state.close()
    if not count:
        reason = f"no reminder of {name} {options.start!r} is parked"
        raise CliError(why=reason, step="list them: callboard entity reminders --state …")
    options.say({"started": count}, f"{count} started; their owner delivers them within 30 s")


@dataclass(frozen=True, kw_only=True)
class AtOptions(TypedOptions):
    """The class that applies the events."""

    code: Path | None = option(
        None, "File with the entity's class, which applies the events.", metavar="FILE.py"
    )


@command(app)
def at(
    key: Key,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=0, help="Of its last event.")],
    options: AtOptions,
) -> None:
    """Print the state of an entity after one of its events.

    With --code its class applies the events up to that number, as in a recovery; of its other
    code only __init__ runs, without arguments. Without --code the stored data is printed: the
    last snapshot up to the event, if there is one, and the events after it.

    \b
    Examples:
      callboard entity at u-17 120 --state sqlite:shop.db --code shop.py
      callboard entity at u-17 120 --state sqlite:shop.db --type shop.Cart --json
    """  # noqa: D301
    from callboard.cli.work.entity_at import past_of

    with options.view() as view:
        name, key = options.find(view, key)
        row = past_of(view, name, key, number, options.code)
    if options.as_json:
        say(to_json(row))
        return
    say(f"{name}/{key} after event {row['number']}")
    for field, value in row["state"].items():
        say(f"  {field} = {to_json(value)}")
    for event in row["events"]:
        say(f"  {event['number']}  {event['kind']}  {to_json(event['fields'])}")


@dataclass(frozen=True, kw_only=True)
class JournalOptions(StateOptions):
    """Selection of the events, and their target."""

    after: int = option(0, "Only events after this position.", min=0, metavar="POSITION")
    follow: bool = flag("Wait for more; end with Ctrl-C.", "--follow", "-f")
    limit: int | None = option(None, "Most events to print.", min=1)
    to_log: Path | None = option(
        None,
        "Append each event once to this log, after those that it has, instead of printing.",
        "--to-log",
        metavar="FOLDER",
    )
    code: Path | None = option(
        None,
        "File with the event classes; their fields become columns of the log.",
        metavar="FILE.py",
    )


@command(app)
def journal(
    name: Annotated[str, typer.Argument(metavar="TYPE", help="The type of the entities.")],
    options: JournalOptions,
) -> None:
    """Print all events of a type in commit order, or copy them to a log.

    A copy resumes after an interruption, and appends each event exactly once.

    \b
    Examples:
      callboard entity journal shop.Cart --state sqlite:shop.db
      callboard entity journal shop.Cart --state sqlite:shop.db --after 1000 --json | jq .fields
      callboard entity journal shop.Cart --state postgresql://db/shop -f
      callboard entity journal shop.Cart --state sqlite:shop.db --to-log carts -f --code shop.py
    """  # noqa: D301
    from callboard.cli.loading import load_app
    from callboard.cli.own_node import catch_signals
    from callboard.commitlog import LogError
    from callboard.node import Node

    if options.to_log is not None and options.limit is not None:
        raise UsageError(why="--limit has no effect with --to-log", step="omit one of them")
    with options.view() as view:
        if not options.follow or name not in view.types():
            name = checked_type(view, name)
    if options.code is not None:
        load_app(options.code)
    with (
        catch_signals() as stop,
        Node("callboard entity") as node,
        node.journal(
            name, after=options.after, follow=options.follow, state=options.state, raw=True
        ) as entries,
        explained((LogError,), "use another folder with --to-log"),
    ):
        with _ended_by(stop, entries):
            if options.to_log is None:
                _print_journal(entries, name, options)
                return
            count = entries.to_log(options.to_log)
        row = {"events": count, "position": entries.position, "log": str(options.to_log)}
        options.say(row, f"{count:,} events appended to {options.to_log}")


@contextmanager
def _ended_by(stop: Any, entries: "Journal") -> Iterator[None]:
    """Close a journal on a signal."""
    import threading

    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            if stop.wait(0.1):
                entries.close()
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()


def _print_journal(entries: "Journal", name: str, options: JournalOptions) -> None:
    """Print events until the journal ends."""
    count = 0
    while page := entries.next_stored():
        for stored in page:
            _print_event(options, name, stored)
            count += 1
            if count == options.limit:
                return
