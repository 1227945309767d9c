"""Our data model beside that of the real Broker 1.4, run by the system's interpreter."""

import ast
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.broker.zeek import StrictEvent as Event
from callboard.model import address, data, scalar, timespan
from callboard.model.data import Data, DataType
from callboard.topics.machine import status, topic
from tests.callboard.model.strategies import DESCRIPTIONS, build

SYSTEM_PYTHON = "/usr/bin/python3"
MODULES = (status, topic, address, data, scalar, timespan)
PACKAGE = SimpleNamespace(
    **{name: value for module in MODULES for name, value in vars(module).items()}
)
SCRIPT = Path(__file__).parent / "zeek_1_4.py"


class RealBroker:
    """The real package, in a process of its own."""

    def __init__(self):
        self._process = subprocess.Popen(
            [SYSTEM_PYTHON, SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, descriptions):
        with suppress(BrokenPipeError):
            print(repr(descriptions), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, (self._process.wait(120), self._process.stderr.read())
        return ast.literal_eval(line)

    def close(self):
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()
        self._process.stderr.close()


@pytest.fixture(scope="module")
def real():
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"no {SYSTEM_PYTHON}")
    probe = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import broker"], capture_output=True, timeout=120, check=False
    )
    if probe.returncode:
        pytest.skip("Zeek Broker 1.4 is not installed (apt-get install python3-broker)")
    broker = RealBroker()
    yield broker
    broker.close()


def _may_hold_subnets_of_one_network(*descriptions):
    """Broker 1.4 calls such two neither smaller nor equal: its order has a hole there."""
    return all("'subnet'" in repr(description) for description in descriptions)


@pytest.mark.slow
@given(descriptions=st.lists(DESCRIPTIONS, min_size=2, max_size=4))
@settings(max_examples=150, deadline=None)
def test_text_type_and_order_are_those_of_the_real_broker(real, descriptions):
    theirs, ours = real.ask(descriptions), [build(item) for item in descriptions]

    assert [item.get_type().name for item in ours] == theirs["type"]
    assert [str(item) for item in ours] == theirs["text"]
    for row, a in enumerate(ours):
        for column, b in enumerate(ours):
            assert (a == b) == theirs["equal"][row][column]
            if not _may_hold_subnets_of_one_network(descriptions[row], descriptions[column]):
                assert (a < b) == theirs["less"][row][column]


SAME_IN_PYTHON = [
    ("none", None),
    ("boolean", True),
    ("count", 2**64 - 1),
    ("integer", -(2**63)),
    ("real", "0.1"),
    ("string", "é"),
    ("string", b"\xff"),
    ("address", (b"abcd", 4)),
    ("address", (bytes(range(16)), 6)),
    ("subnet", ((b"abcd", 4), 20)),
    ("subnet", ((bytes(range(16)), 6), 20)),
    ("port", (80, 1)),
    ("timestamp", 1_769_862_600),
    ("timespan", 1_500_000_000),
    ("enum", "Notice::LOG"),
    ("set", [("integer", 1)]),
    ("table", [(("integer", 1), ("string", "x"))]),
    ("vector", [("integer", 1), ("vector", [])]),
]


def test_python_values_are_those_of_the_real_broker(real):
    theirs = real.ask(SAME_IN_PYTHON)["python"]

    ours = [repr(Data.to_py(build(item))) for item in SAME_IN_PYTHON]
    assert [text.replace("datetime.UTC", "datetime.timezone.utc") for text in ours] == theirs
    assert {build(item).get_type() for item in SAME_IN_PYTHON} == set(DataType)


def test_where_the_real_broker_cannot_convert_ours_does(real):
    cases = [
        ("set", [("count", 1)]),
        ("set", [("set", [("integer", 1)])]),
        ("table", [(("table", []), ("none", None))]),
    ]

    assert real.ask(cases)["python"] == ["TypeError"] * 3
    assert [Data(Data.to_py(build(case))) for case in cases] == [build(case) for case in cases]


#: What theirs has and ours has not, because ours cannot be changed (and bytes of an address
#: have one order only).
LEFT_OUT = {
    "Address": {"mask", "ByteOrder"},
    "Set": {"add", "clear", "remove"},
    "Table": {"__delitem__", "__setitem__"},
    "Vector": {
        "append",
        "clear",
        "count",
        "extend",
        "insert",
        "pop",
        "remove",
        "__delitem__",
        "__setitem__",
    },
}
#: Traces of the binding, and what Python finds by itself (`/=` by `/`, truth by length).
INCIDENTAL = {"__module__", "__itruediv__", "__bool__", "__rmul__"}


def test_every_attribute_of_the_real_classes_is_there(real):
    attributes = real.ask("names")["attributes"]

    ours = {name: getattr(PACKAGE, name) for name in attributes}
    missing = {
        name: {a for a in theirs if a[:11] != "__pybind11_" and not hasattr(ours[name], a)}
        - LEFT_OUT.get(name, set())
        - INCIDENTAL
        for name, theirs in attributes.items()
    }
    assert {name: found for name, found in missing.items() if found} == {}


def test_codes_have_the_names_and_numbers_of_the_real_broker(real):
    members = real.ask("names")["members"]

    for name in ("EC", "SC", "PeerStatus", "PeerFlags"):
        ours = {key: int(value) for key, value in getattr(PACKAGE, name).__members__.items()}
        assert members[name].items() <= ours.items()


def test_topics_join_and_notices_print_as_in_the_real_broker(real):
    theirs = real.ask("names")

    for (a, b), joined in theirs["joined"].items():
        assert (PACKAGE.Topic(a) / PACKAGE.Topic(b)).string() == joined
    event = Event("name", 1, [PACKAGE.Count(2), {3}])
    ours = [PACKAGE.Status(), PACKAGE.Error(), event.as_data()]
    assert list(map(str, ours)) == theirs["texts"]
