"""Everything that Zeek Broker's Python package shows is here under the same name."""

import json
from enum import Enum
from pathlib import Path

import pytest

from callboard import broker

SURFACE = json.loads(
    (Path(__file__).parents[2] / "interop" / "broker" / "surface_1_4.json").read_text()
)

#: Names that are not here, with the reason.
ABSENT = {
    "Address.mask": "addresses are immutable; Subnet(address, length).network() masks",
    "bro.Event.warnings_emitted": "Python's own warnings keep that account",
    "Data.Type.None": "no name in Python's syntax; the member is called Nil",
}

#: Enumerations whose numbers are those of the wire, not of the Python package.
NUMBERED_BY_THE_WIRE = "Data.Type."

#: What is more than in 1.4: later versions, and awaitable twins.
ADDED = {"ImmutableData", "Recording", "SafeSubscriber"}


def paths(told, prefix=""):
    """Yield each name of the surface with its path, and the number of enumeration members."""
    for name, entry in told.items():
        yield f"{prefix}{name}", None
        if isinstance(entry, dict):
            yield from paths(entry.get("attributes", {}), f"{prefix}{name}.")
            for member, number in entry.get("members", {}).items():
                yield f"{prefix}{name}.{member}", number


NAMES = dict(paths(SURFACE))


def is_absent(path):
    return path in ABSENT or any(path.startswith(f"{name}.") for name in ABSENT)


def look_up(path):
    found = broker
    for part in path.split("."):
        found = getattr(found, part)
    return found


def has(path):
    try:
        look_up(path)
    except AttributeError:
        pass
    else:
        return True
    owner, _, name = path.rpartition(".")
    if name in ("name", "value") and issubclass(look_up(owner), Enum):
        return True
    slots = getattr(look_up(owner), "__dataclass_fields__", {}) if owner else {}
    types = getattr(look_up(owner), "_types", {}) if owner else {}
    return name in slots or name in types


def test_the_list_is_that_of_a_whole_package():
    assert len(NAMES) > 250
    assert {"Endpoint.peer", "SC.PeerAdded", "zeek.Event.name", "Publisher.demand"} <= set(
        NAMES
    )


@pytest.mark.parametrize("path", sorted(path for path in NAMES if not is_absent(path)))
def test_name_of_the_package_is_here(path):
    assert has(path)


@pytest.mark.parametrize("path", sorted(ABSENT))
def test_name_that_is_told_to_be_absent_is_absent(path):
    assert path in NAMES
    assert not has(path)


NUMBERS = {
    path: number
    for path, number in NAMES.items()
    if number is not None and not path.startswith(NUMBERED_BY_THE_WIRE)
}


@pytest.mark.parametrize("path", NUMBERS)
def test_member_of_an_enumeration_has_its_number(path):
    assert int(look_up(path)) == NAMES[path]


def test_the_package_shows_no_other_names():
    assert set(broker.__all__) - set(SURFACE) - ADDED == {"utc"}
