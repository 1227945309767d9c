"""Handlers that write flows to files and give files as flows, and the factory that knows which.

A file of rules (TOML or JSON) says what goes where; the first rule that fits wins:

    [[rule]]
    rule = '(= stream "raw")'
    rw = "w"                            # w: clients give; r: clients take
    filepat = "{host}/{stream}.zio"
    attr = { host = "unknown" }         # for attributes that the client did not say
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from callboard.configuration.reading import parse
from callboard.flow.errors import FlowRefused, InvalidRule, RecordError
from callboard.flow.factories import Bot
from callboard.flow.file_service import Append, FetchRecords
from callboard.flow.flow import Flow
from callboard.flow.handler import FlowHandler
from callboard.flow.protocol.message import Message, object_text
from callboard.flow.protocol.rules import Rule, fill_pattern, invalid_rule
from callboard.kernel.actors import Actor, ActorRef
from callboard.kernel.errors import RemoteError
from callboard.node import Node
from callboard.support.user_file import read_user_file

_DIRECTIONS: Final = {"w": "inject", "r": "extract"}
_KEYS: Final = frozenset({"rule", "rw", "filepat", "attr"})


@dataclass(frozen=True, slots=True)
class FileRule:
    """Which flows belong to which file.

    Attributes:
        rule: an expression over the attributes of the BOT.
        rw: `w` for clients that give, `r` for clients that take.
        filepat: pattern of the file's name.
        attr: attributes for those that the client did not say.
    """

    rule: Rule
    rw: str
    filepat: str
    attr: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: object, where: str) -> Self:
        """Read an entry of a file of rules.

        Raises:
            InvalidRule: it is of no use.
        """
        if not isinstance(entry, dict) or not set(entry) <= _KEYS:
            invalid_rule(f"{where}: a rule has the keys {', '.join(sorted(_KEYS))}")
        rule, rw = entry.get("rule", "true"), entry.get("rw", "w")
        filepat, attr = entry.get("filepat"), entry.get("attr", {})
        if not isinstance(rule, str) or rw not in _DIRECTIONS or not isinstance(attr, dict):
            invalid_rule(f"{where}: rule is a text, rw is w or r, attr has names and values")
        if not isinstance(filepat, str):
            invalid_rule(f'{where}: filepat is missing, such as filepat = "{{stream}}.zio"')
        try:
            return cls(Rule(rule), rw, filepat, attr)
        except InvalidRule as error:
            invalid_rule(f"{where}: {error}")

    def holds(self, attributes: Mapping[str, Any]) -> bool:
        """Return whether the expression is true of a client's attributes."""
        return self.rule.holds({**self.attr, **attributes})

    def path(self, attributes: Mapping[str, Any], root: Path) -> Path:
        """Return the file that belongs to a client's attributes.

        Raises:
            InvalidRule: an attribute is missing, or the name would leave the folder.
        """
        return fill_pattern(self.filepat, {**self.attr, **attributes}, root)


def load_rules(path: Path) -> list[FileRule]:
    """Read a file of rules: JSON if its name says so, else TOML.

    Raises:
        InvalidRule: it cannot be read; the text says where.
    """
    try:
        text = read_user_file(path).decode()
        found = parse(text, "JSON" if path.suffix == ".json" else "TOML")
    except OSError as error:
        invalid_rule(f"{path}: {error.strerror}")
    except UnicodeDecodeError:
        invalid_rule(f"{path}: it is no text in UTF-8")
    except ValueError as error:
        invalid_rule(f"{path}: {error}")
    entries = found.get("rule") if isinstance(found, dict) else found
    if not isinstance(entries, list) or not entries:
        invalid_rule(f"{path}: there is no rule; write [[rule]] tables, or a JSON list")
    return [FileRule.of(entry, f"{path}: rule {n}") for n, entry in enumerate(entries, 1)]


class FileHandler(FlowHandler):
    """Serves a flow with one file of a service, which may refuse: the reason is the EOT's."""

    def __init__(self, service: ActorRef[Any], name: str) -> None:
        self._service = service
        self._name = name

    async def serve(self, flow: Flow, bot: Bot) -> None:
        """Write or read all, then EOT."""
        try:
            about = await self.carry(flow, bot)
        except (RemoteError, RecordError) as error:
            await flow.aeot(str(error))
        else:
            await flow.aeot(**about)

    async def carry(self, flow: Flow, bot: Bot) -> dict[str, Any]:
        """Write or read all; return the attributes of EOT."""
        raise NotImplementedError


class FileWriter(FileHandler):
    """Appends each DAT to a file; its EOT says how many records and bytes that were."""

    async def carry(self, flow: Flow, bot: Bot) -> dict[str, Any]:
        """Write until EOT."""
        records = size = 0
        about = bot.attributes
        async for dat in flow:
            label = object_text({**about, **dat.attributes})
            record = Message(
                label=label, payload=dat.payload, origin=bot.cid, seqno=dat.seqno
            ).encode()
            await self._service.ask(Append(self._name, (record,)))
            records += 1
            size += sum(map(len, dat.payload))
            about = {}
        return {"records": records, "bytes": size}


class FileReader(FileHandler):
    """Gives the records of a file."""

    async def carry(self, flow: Flow, bot: Bot) -> dict[str, Any]:
        """Give them all."""
        found = await self._service.ask(FetchRecords(self._name))
        while found.messages:
            for data in found.messages:
                record = Message.decode(data)
                about = record.label_object
                about.pop("flow", None)
                await flow.aput(record.payload, **about)
            found = await self._service.ask(FetchRecords(self._name, found.offset))
        return {}


@dataclass(frozen=True, slots=True)
class FileFactory:
    """Spawns a writer or reader for each flow that a rule fits.

    Attributes:
        node: where handlers live.
        service: the `FileService` of the folder, on any node.
        rules: the first that fits wins.
        root: the folder, for looking whether names stay inside.
    """

    node: Node
    service: ActorRef[Any]
    rules: Sequence[FileRule]
    root: Path

    def __call__(self, bot: Bot) -> bool:
        """Find the file of a flow.

        Raises:
            FlowRefused: no rule fits.
            InvalidRule: its name would be of no use.
        """
        for rule in self.rules:
            if _DIRECTIONS[rule.rw] == bot.direction and rule.holds(bot.attributes):
                path = rule.path(bot.attributes, self.root)
                name = path.relative_to(self.root.resolve()).as_posix()
                kind: type[Actor] = FileWriter if rule.rw == "w" else FileReader
                handler = self.node.spawn(kind, self.service, name)
                return bot.hand_to(handler, then_stop=True)
        msg = f"no rule takes a flow with {bot.attributes} and direction {bot.direction!r}"
        raise FlowRefused(msg)
