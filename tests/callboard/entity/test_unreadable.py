"""Stored values that a program cannot read, for every reader of stored values."""

import ast
import base64
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import callboard
from callboard import Entity, Node, UnreadableValue, event, handler, message
from callboard.basp import MessageRegistry, PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.entity.event_json import EventSerializer
from callboard.entity.machine.table import slot_of
from callboard.entity.queue.messages import ChangeJobs
from callboard.entity.state.backends import open_state
from callboard.entity.state.interface import (
    EntitySnapshot,
    NewEvent,
    RowChanges,
    SlotBatch,
    StoredReminder,
)
from callboard.errors import AskTimeout, StateCorrupt, StateVersion
from tests.callboard.entity.state.stores import reminders_of
from tests.polling import eventually
from tests.sources import mentioning


@message("unreadable-tests.Known")
@dataclass(frozen=True)
class Known:
    needed: int

    def __post_init__(self) -> None:
        if self.needed < 0:
            raise ValueError("negative")


@dataclass(frozen=True)
class Newer:
    a: int


def _newer() -> str:
    """A value in CBOR whose type this program lacks."""
    registry = MessageRegistry()
    registry.register("unreadable-tests.Newer", Newer)
    return base64.b64encode(PayloadCodec(registry).encode([Newer(1)])).decode()


#: Well-formed values that another release of the program wrote.
OTHER_RELEASE = {
    "unknown type": '{"$type":"unreadable-tests.New","a":1}',
    "unknown type inside": '{"a":[{"$type":"unreadable-tests.New","a":1}]}',
    "unknown type in CBOR": f'{{"$cbor":"{_newer()}"}}',
    "missing field": '{"$type":"unreadable-tests.Known"}',
    "refused by its class": '{"$type":"unreadable-tests.Known","needed":-1}',
}
#: What no program writes.
DAMAGED = {
    "nested too deep": "[" * 20_000 + "]" * 20_000,
    "no CBOR": '{"$cbor":"AAAA"}',
    "no text": '{"$cbor":5}',
    "no name": '{"$type":["a"]}',
}
BODIES = OTHER_RELEASE | DAMAGED


@pytest.fixture
def form() -> EventSerializer:
    return EventSerializer(PayloadCodec(DEFAULT_REGISTRY, max_items=1 << 16))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_each_is_a_typed_error_or_shown_as_it_is_stored(
    form: EventSerializer, body: str
) -> None:
    with pytest.raises(StateVersion if body in OTHER_RELEASE.values() else StateCorrupt):
        form.read(body)
    shown = form.read_or_show(body)
    assert isinstance(shown, UnreadableValue)
    assert shown.body == body
    assert shown.why


def test_the_type_that_is_missing_is_named(form: EventSerializer) -> None:
    with pytest.raises(StateVersion) as found:
        form.read(OTHER_RELEASE["unknown type inside"])
    assert found.value.missing == "unreadable-tests.New"
    shown = form.read_or_show(OTHER_RELEASE["unknown type"])
    assert shown.type_name == "unreadable-tests.New"


def test_large_values_that_json_lacks_are_read(form: EventSerializer) -> None:
    value = {str(number) for number in range(30_000)}
    assert form.read(form.write({"a": value})) == {"a": value}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/shop.db"


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_takers_pass_a_job_by_and_lists_of_dead_jobs_show_it(url: str, body: str) -> None:
    with Node() as node:
        mails = node.queue("mails", state=url, attempts=1)
        owner = node.entity("queue.mails", "mails")
        owner.ask(ChangeJobs(put=((body, 0.0), ('"good"', 0.0)))).result(10)
        job = mails.take(timeout=10.0).result(20)
        assert (job.value, job.attempt) == ("good", 1)
        job.nack(reason="broken").result(10)
        with pytest.raises(AskTimeout):
            mails.take(timeout=0.2).result(20)
        stats = mails.stats().result(10)
        assert (stats.ready, stats.taken, stats.dead) == (1, 0, 1)
    with closing(open_state(url, "test")) as state:
        query = "UPDATE callboard_jobs SET status = 3 WHERE status = 0 RETURNING attempt"
        assert state.write_row(query) == [(0,)]  # type: ignore[attr-defined]
    with Node() as node:
        mails = node.queue("mails", state=url)
        first, second = mails.dead().result(10)
        assert isinstance(first.value, UnreadableValue)
        assert (first.body, second.value) == (body, "good")
        assert mails.discard(first.number).result(10) == 1
        assert mails.requeue().result(10) == 1


class Clock(Entity):
    name = "unreadable-tests.Clock"

    def __init__(self) -> None:
        self._starts = 0

    async def activated(self) -> None:
        Clock.activations += 1

    activations = 0

    @handler
    def on_text(self, text: str) -> str:
        return text

    @event
    def on_known(self, event: Known) -> None:
        pass


class Page(Entity):
    name = "unreadable-tests.Page"

    def __init__(self) -> None:
        self.state = Known(1)

    @handler
    def on_text(self, text: str) -> str:
        return text


def stored(url: str, kind: type[Entity], key: str, **parts: Any) -> None:
    """Store something of an entity as another program does."""
    with closing(open_state(url, "another")) as state:
        slot = slot_of(key)
        assert state.claim(kind.name, {slot: 1}) == {}
        done = state.commit([SlotBatch((kind.name, slot), 1, **parts)])
        assert not done.failed
        assert not done.fenced


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_reminder_waits_and_its_entity_goes_on(url: str, body: str) -> None:
    Clock.activations = 0
    row = StoredReminder("a", "ring", 1, 0, body)
    stored(url, Clock, "a", rows=RowChanges({("a", "ring"): row}))
    with Node() as node:
        node.host(Clock, state=url)
        eventually(lambda: Clock.activations == 1)
        assert node.entity(Clock, "a").ask("up").result(10) == "up"
        assert Clock.activations == 1, "it was not read again"
        assert node.parked_reminders(Clock) == []
    with closing(open_state(url, "test")) as state:
        assert [each.body for each in reminders_of(state, Clock.name, "a")] == [body]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_state_is_a_typed_error_of_its_key_alone(url: str, body: str) -> None:
    stored(url, Page, "a", snapshots=[EntitySnapshot("a", 1, 0, body)])
    with Node() as node:
        node.host(Page, state=url)
        with pytest.raises((StateVersion, StateCorrupt)):
            node.entity(Page, "a").ask("up").result(10)
        assert node.entity(Page, "b").ask("up").result(10) == "up"


EVENTS = {
    "unknown kind": ("unreadable-tests.New", '{"a":1}'),
    "missing field": ("unreadable-tests.Known", "{}"),
    "refused by its class": ("unreadable-tests.Known", '{"needed":-1}'),
    "unknown type inside": ("unreadable-tests.Known", '{"needed":{"$type":"none.New"}}'),
}


@pytest.mark.parametrize(("kind", "body"), EVENTS.values(), ids=EVENTS)
def test_an_event_of_another_release_is_a_version_for_entities_and_journals(
    url: str, kind: str, body: str
) -> None:
    stored(url, Clock, "a", events=[NewEvent("a", 1, kind, 1, body)])
    with Node() as node:
        node.host(Clock, state=url)
        with pytest.raises(StateVersion):
            node.entity(Clock, "a").ask("up").result(10)
        journal = node.journal(Clock)
        for _ in range(2):  # it is not passed over
            with pytest.raises(StateVersion):
                next(iter(journal))
        (entry,) = node.journal(Clock, raw=True)
        assert (entry.event.kind, entry.key) == (kind, "a")
        assert node.entity(Clock, "b").ask("up").result(10) == "up"


#: What reads stored values: each is tried above.
READERS = {
    "entity/replay.py", "entity/cell.py", "entity/event_json.py", "entity/journal/entry.py",
    "entity/queue/work_queue.py",
}  # fmt: skip


def test_no_other_code_reads_stored_values() -> None:
    root = Path(callboard.__file__).parent
    found = set()
    for path, tree in mentioning(root, "form.read"):
        for node in ast.walk(tree):
            is_read = isinstance(node, ast.Attribute) and node.attr == "read"
            if is_read and ast.unparse(node).endswith("form.read"):
                found.add(str(path.relative_to(root)))
    assert found - {"mqtt/wire/codec.py"} <= READERS, "try it above with what it cannot read"
