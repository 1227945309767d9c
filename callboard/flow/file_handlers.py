"""Handlers that write flows to files and send files as flows, and a factory that chooses them.

A file of rules (TOML or JSON) maps flows to files; the first rule that matches wins:

    [[rule]]
    rule = '(= stream "raw")'
    rw = "w"                            # w: clients send DATs; r: clients receive them
    filepat = "{host}/{stream}.zio"
    attr = { host = "unknown" }         # defaults of attributes that the client omits
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
from callboard.support.files.user_file import read_user_file

_DIRECTIONS: Final = {"w": "inject", "r": "extract"}
_KEYS: Final = frozenset({"rule", "rw", "filepat", "attr"})


@dataclass(frozen=True, slots=True)
class FileRule:
    """A rule that maps flows to files.

    Attributes:
        rule: an expression over the attributes of the BOT.
        rw: `w` for clients that send DATs, `r` for clients that receive them.
        filepat: pattern of the file's name.
        attr: defaults of attributes that the client omits.
    """

    rule: Rule
    rw: str
    filepat: str
    attr: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: object, place: str) -> Self:
        """Read an entry of a file of rules; `place` is named in errors.

        Raises:
            InvalidRule: the entry is malformed.
        """
        if not isinstance(entry, dict) or not set(entry) <= _KEYS:
            invalid_rule(f"{place}: a rule has the keys {', '.join(sorted(_KEYS))}")
        rule, rw = entry.get("rule", "true"), entry.get("rw", "w")
        filepat, attr = entry.get("filepat"), entry.get("attr", {})
        if not isinstance(rule, str) or rw not in _DIRECTIONS or not isinstance(attr, dict):
            invalid_rule(f"{place}: rule is a text, rw is w or r, attr has names and values")
        if not isinstance(filepat, str):
            invalid_rule(f'{place}: filepat is missing, such as filepat = "{{stream}}.zio"')
        try:
            return cls(Rule(rule), rw, filepat, attr)
        except InvalidRule as error:
            invalid_rule(f"{place}: {error}")

    def holds(self, attributes: Mapping[str, Any]) -> bool:
        """Return whether the rule matches the attributes of a client."""
        return self.rule.holds({**self.attr, **attributes})

    def path(self, attributes: Mapping[str, Any], root: Path) -> Path:
        """Return the path of the file for the attributes of a client.

        Raises:
            InvalidRule: an attribute is missing, or the file would be outside of the folder.
        """
        return fill_pattern(self.filepat, {**self.attr, **attributes}, root)


def load_rules(path: Path) -> list[FileRule]:
    """Read a file of rules: JSON if its name ends in `.json`, else TOML.

    Raises:
        InvalidRule: the file or a rule cannot be read; the text names the place.
    """
    try:
        text = read_user_file(path).decode()
        content = parse(text, "JSON" if path.suffix == ".json" else "TOML")
    except OSError as error:
        invalid_rule(f"{path}: {error.strerror}")
    except UnicodeDecodeError:
        invalid_rule(f"{path}: it is not UTF-8 text")
    except ValueError as error:
        invalid_rule(f"{path}: {error}")
    entries = content.get("rule") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        invalid_rule(f"{path}: it has no rules; write [[rule]] tables, or a JSON list")
    return [FileRule.of(entry, f"{path}: rule {n}") for n, entry in enumerate(entries, 1)]


class FileHandler(FlowHandler):
    """A handler of one file of a service; its EOT has the reason if the service refuses."""

    def __init__(self, service: ActorRef, name: str) -> None:
        self._service = service
        self._name = name

    async def serve(self, flow: Flow, bot: Bot) -> None:
        """Transfer all records, then send EOT."""
        try:
            attributes = await self.transfer(flow, bot)
        except (RemoteError, RecordError) as error:
            await flow.aeot(str(error))
        else:
            await flow.aeot(**attributes)

    async def transfer(self, flow: Flow, bot: Bot) -> dict[str, Any]:
        """Write or read all records; return the attributes of the EOT."""
        raise NotImplementedError


class FileWriter(FileHandler):
    """A handler that appends each DAT to a file; its EOT counts the records and bytes."""

    async def transfer(self, flow: Flow, bot: Bot) -> dict[str, Any]:
        """Append a record for each DAT until EOT.

        The first one also gets the BOT's attributes.
        """
        records = size = 0
        attributes = bot.attributes
        async for dat in flow:
            label = object_text({**attributes, **dat.attributes})
            record = Message(
                label=label, payload=dat.payload, origin=bot.cid, seqno=dat.seqno
            ).encode()
            await self._service.ask(Append(self._name, (record,)))
            records += 1
            size += sum(map(len, dat.payload))
            attributes = {}
        return {"records": records, "bytes": size}


class FileReader(FileHandler):
    """A handler that sends the records of a file."""

    async def transfer(self, flow: Flow, bot: Bot) -> dict[str, Any]:
        """Send all records of the file."""
        fetched = await self._service.ask(FetchRecords(self._name))
        while fetched.messages:
            for data in fetched.messages:
                record = Message.decode(data)
                attributes = record.label_object
                attributes.pop("flow", None)
                await flow.aput(record.payload, **attributes)
            fetched = await self._service.ask(FetchRecords(self._name, fetched.offset))
        return {}


@dataclass(frozen=True, slots=True)
class FileFactory:
    """A factory that spawns a writer or a reader for each flow that matches a rule.

    Attributes:
        node: node of the handlers.
        service: the `FileService` of the folder, on any node.
        rules: rules; the first that matches wins.
        root: the folder, to check that names stay inside.
    """

    node: Node
    service: ActorRef
    rules: Sequence[FileRule]
    root: Path

    def __call__(self, bot: Bot) -> bool:
        """Spawn a handler for the file of a flow.

        Raises:
            FlowRefused: no rule matches.
            InvalidRule: the name of the file is invalid.
        """
        for rule in self.rules:
            if _DIRECTIONS[rule.rw] == bot.direction and rule.holds(bot.attributes):
                path = rule.path(bot.attributes, self.root)
                name = path.relative_to(self.root.resolve()).as_posix()
                kind: type[Actor] = FileWriter if rule.rw == "w" else FileReader
                handler = self.node.spawn(kind, self.service, name)
                return bot.hand_to(handler, then_stop=True)
        msg = f"no rule matches a flow with {bot.attributes} and direction {bot.direction!r}"
        raise FlowRefused(msg)
