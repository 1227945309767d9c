"""Parts that are named, not imported: each is there, and none needs an installed package."""

import ast
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from callboard.support import slots

ROOT = Path(__file__).parents[2]
SLOTS = [slot for slot in vars(slots).values() if isinstance(slot, slots.PartSlot)]
PLACES = [place for slot in SLOTS for place in slot._addresses.values()]


@pytest.mark.parametrize("place", PLACES)
def test_each_part_is_where_composition_says(place):
    module, _, name = place.partition(":")

    found = find_spec(module)

    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    defined = {getattr(node, "name", None) for node in tree.body}
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert not name or name in defined | imported


def test_composition_fills_every_slot():
    assert all(slot.names() for slot in SLOTS)


def test_a_part_that_is_not_there_is_named():
    slot = slots.PartSlot("wire", "callboard.no_such_group")

    with pytest.raises(LookupError, match="there is no wire 'amqp'"):
        slot.load("amqp")


def test_a_part_of_another_distribution_is_found_by_its_entry_point(tmp_path, monkeypatch):
    metadata = tmp_path / "rabbit-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rabbit\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[callboard.wires]\namqp = rabbit_wire:Wire\n")
    (tmp_path / "rabbit_wire.py").write_text("class Wire: pass\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert slots.WIRES.load("amqp").__module__ == "rabbit_wire"


#: Takes the metadata of callboard away, as where only its sources are on the path.
WITHOUT_METADATA = """
    import importlib.metadata as metadata

    found = metadata.Distribution.discover.__func__

    def discover(cls, **kwargs):
        return (d for d in found(cls, **kwargs) if d.metadata["Name"] != "callboard")

    metadata.Distribution.discover = classmethod(discover)
"""

PARTS = """
    import callboard
    from callboard import Actor, Node, handler
    from callboard.support import slots
    from thespian.actors import ActorSystem

    assert callboard.__file__.startswith(ROOT), callboard.__file__
    try:
        metadata.version("callboard")
    except metadata.PackageNotFoundError:
        pass
    else:
        raise AssertionError("there is metadata")

    class Echo(Actor):
        @handler
        def text(self, message: str) -> str:
            return message

    with Node() as node, callboard.Endpoint(node=node) as endpoint:
        assert node.spawn(Echo).ask("hi").result(10) == "hi"
        endpoint.listen()
        endpoint.peers()
    system = ActorSystem("callboard", {"Admin Port": 0}, transientUnique=True)
    system.shutdown()
    slots.COMMANDS.load("node")
    slots.OPENERS.load("convention")
    print("all parts are there")
"""


def test_a_checkout_on_the_path_needs_no_metadata(tmp_path):
    (tmp_path / "callboard").symlink_to(ROOT / "callboard")
    script = textwrap.dedent(WITHOUT_METADATA) + textwrap.dedent(PARTS)
    script = script.replace("ROOT", repr(str(tmp_path)))

    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout == "all parts are there\n", done.stderr
