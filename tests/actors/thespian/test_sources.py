"""Loaded sources: an authority accepts them, and they leave nothing behind."""

import builtins
import io
import sys
from zipfile import ZipFile

import pytest
from thespian.actors import (
    Actor,
    ActorSystem,
    InvalidActorSourceHash,
    LoadedSource,
    UnloadedSource,
    ValidatedSource,
    ValidateSource,
)

from callboard.actors import SystemBase

GREETER = """
from thespian.actors import Actor
import callboard_words

class Greeter(Actor):
    def receiveMessage(self, msg, sender):
        if msg == "greet":
            self.send(sender, callboard_words.GREETING)
        elif msg == "import":
            self.send(sender, __import__("callboard_words").GREETING)
        elif msg == "child":
            self.send(sender, self.createActor("callboard_greeter.Greeter"))
"""


def archive(greeting):
    packed = io.BytesIO()
    with ZipFile(packed, "w") as files:
        files.writestr("callboard_greeter.py", GREETER)
        files.writestr("callboard_words.py", f"GREETING = {greeting!r}\n")
    return packed.getvalue()


class Authority(Actor):
    """Accepts what is a zip file, refuses text, is dumbfounded by anything else."""

    def receiveMessage(self, msg, sender):
        if msg == "register":
            self.registerSourceAuthority()
            self.send(sender, "registered")
        elif isinstance(msg, ValidateSource):
            if msg.sourceData.startswith(b"fail"):
                raise ValueError("what is this")
            accepted = None if msg.sourceData.startswith(b"no") else msg.sourceData
            self.send(sender, ValidatedSource(msg.sourceHash, accepted))


class Watcher(Actor):
    def __init__(self):
        self.seen = []

    def receiveMessage(self, msg, sender):
        if isinstance(msg, LoadedSource | UnloadedSource):
            self.seen.append((type(msg).__name__, msg.sourceHash))
        elif isinstance(msg, str):
            if msg != "seen":
                self.notifyOnSourceAvailability(msg == "on")
            self.send(sender, list(self.seen))


@pytest.fixture
def loading(system):
    system.ask(system.createActor(Authority), "register", 5)
    return system


def load(system, content):
    return system.loadActorSource(io.BytesIO(content))


def test_actors_are_created_from_an_accepted_source(loading):
    source = load(loading, archive("hello"))

    greeter = loading.createActor("callboard_greeter.Greeter", sourceHash=source)

    assert loading.ask(greeter, "greet", 5) == "hello"
    assert loading.ask(greeter, "import", 5) == "hello"


def test_children_come_from_the_source_of_their_parent(loading):
    source = load(loading, archive("hello"))
    greeter = loading.createActor("callboard_greeter.Greeter", sourceHash=source)

    child = loading.ask(greeter, "child", 5)

    assert loading.ask(child, "greet", 5) == "hello"


def test_two_releases_of_a_module_live_side_by_side(loading):
    first, second = load(loading, archive("hello")), load(loading, archive("bonjour"))
    greeters = [
        loading.createActor("callboard_greeter.Greeter", sourceHash=each)
        for each in (first, second)
    ]

    assert [loading.ask(each, "greet", 5) for each in greeters] == ["hello", "bonjour"]
    assert [loading.ask(each, "import", 5) for each in greeters] == ["hello", "bonjour"]


def test_modules_of_a_source_are_for_that_source_only(loading):
    source = load(loading, archive("hello"))
    loading.createActor("callboard_greeter.Greeter", sourceHash=source)

    with pytest.raises(ImportError):
        __import__("callboard_words")
    with pytest.raises(ImportError):
        loading.createActor("callboard_greeter.Greeter")


@pytest.mark.parametrize("content", [b"no", b"fail", b"neither zip nor refused"])
def test_a_source_that_is_not_accepted_creates_no_actors(loading, content):
    source = load(loading, content)

    with pytest.raises(InvalidActorSourceHash):
        loading.createActor("callboard_greeter.Greeter", sourceHash=source)


def test_without_an_authority_nothing_is_loaded(system):
    source = load(system, archive("hello"))

    with pytest.raises(InvalidActorSourceHash):
        system.createActor("callboard_greeter.Greeter", sourceHash=source)


def test_an_unloaded_source_creates_no_actors_and_ends_none(loading):
    source = load(loading, archive("hello"))
    greeter = loading.createActor("callboard_greeter.Greeter", sourceHash=source)
    loading.unloadActorSource(source)

    with pytest.raises(InvalidActorSourceHash):
        loading.createActor("callboard_greeter.Greeter", sourceHash=source)
    assert loading.ask(greeter, "import", 5) == "hello"


def test_watchers_are_notified_of_loaded_sources_and_of_changes(loading):
    first = load(loading, archive("hello"))
    greeter = loading.createActor("callboard_greeter.Greeter", sourceHash=first)
    watcher = loading.createActor(Watcher)
    loading.ask(watcher, "on", 5)
    second = load(loading, archive("bonjour"))
    loading.createActor("callboard_greeter.Greeter", sourceHash=second)
    loading.unloadActorSource(first)

    assert loading.ask(greeter, "greet", 5) == "hello"
    assert loading.ask(watcher, "off", 5) == [
        ("LoadedSource", first),
        ("LoadedSource", second),
        ("UnloadedSource", first),
    ]
    loading.unloadActorSource(second)
    assert len(loading.ask(watcher, "seen", 5)) == 3


def test_a_source_that_cannot_be_read_raises(system, tmp_path):
    with pytest.raises(FileNotFoundError):
        system.loadActorSource(str(tmp_path / "missing.zip"))


def test_shutdown_takes_sources_out_of_the_process(no_thread_left):
    modules, finders, importing = set(sys.modules), list(sys.meta_path), builtins.__import__
    system = ActorSystem(systemBase=SystemBase(), transientUnique=True)
    system.ask(system.createActor(Authority), "register", 5)
    source = load(system, archive("hello"))
    system.createActor("callboard_greeter.Greeter", sourceHash=source)
    system.unloadActorSource(source)
    assert sys.meta_path != finders

    system.shutdown()

    assert sys.meta_path == finders
    assert builtins.__import__ is importing
    assert [name for name in set(sys.modules) - modules if name.startswith("{{")] == []
