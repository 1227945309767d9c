"""The data model: conversions, total order, text, limits."""

import datetime
import enum
import ipaddress
import math
from itertools import pairwise, product
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.model.address import Address, Port, Subnet
from callboard.model.data import (
    DEPTH_LIMIT,
    Data,
    DataType,
    FrozenTable,
    ImmutableData,
    Set,
    Table,
    Vector,
)
from callboard.model.errors import DataOverflow, InvalidData, UnsupportedData
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp
from tests.callboard.model.strategies import DATA

UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 1, 31, 12, 30, 0, 123456, tzinfo=UTC)

#: One value of each type: as Python has it, type, text; to Python and back it stays.
EACH_TYPE = [
    (None, DataType.Nil, "nil"),
    (True, DataType.Boolean, "T"),
    (Count(2**64 - 1), DataType.Count, "18446744073709551615"),
    (-(2**63), DataType.Integer, "-9223372036854775808"),
    (1.5, DataType.Real, "1.500000"),
    ("é", DataType.String, "é"),
    (ipaddress.ip_address("1.2.3.4"), DataType.Address, "1.2.3.4"),
    (ipaddress.ip_address("2001:db8::1"), DataType.Address, "2001:db8::1"),
    (ipaddress.ip_network("10.0.0.0/8"), DataType.Subnet, "10.0.0.0/8"),
    (ipaddress.ip_network("0.0.0.0/0"), DataType.Subnet, "0.0.0.0/0"),
    (ipaddress.ip_network("2001:db8::/32"), DataType.Subnet, "2001:db8::/32"),
    (Port(80, Port.TCP), DataType.Port, "80/tcp"),
    (MOMENT, DataType.Timestamp, "1769862600123456000ns"),
    (datetime.timedelta(seconds=-1.5), DataType.Timespan, "-1500000000ns"),
    (Enum("Notice::LOG"), DataType.EnumValue, "Notice::LOG"),
    ({1, "a"}, DataType.Set, "{1, a}"),
    ({"a": None, 1: 2}, DataType.Table, "{1 -> 2, a -> nil}"),
    ((1, (2,), {3}), DataType.Vector, "(1, (2), {3})"),
]


@pytest.mark.parametrize(("value", "kind", "text"), EACH_TYPE)
def test_each_type_keeps_its_value_and_prints_as_broker_prints(value, kind, text):
    data = Data.from_py(value)

    assert data.get_type() is kind
    assert str(data) == text
    assert Data.to_py(data) == value
    assert type(Data.to_py(data)) is type(value)


def test_fifteen_types_are_numbered_as_on_the_wire():
    assert [kind.value for kind in DataType] == list(range(15))
    assert {kind for _, kind, _ in EACH_TYPE} == set(DataType)


@given(DATA)
@example(Data(Timespan(2**63 - 1)))
@example(Data(Timespan(-(2**63))))
def test_python_values_without_equal_members_come_back(data):
    """Immutable or not, the values say the same; times lose what is below a microsecond."""
    once = Data.to_py(data)

    assert Data.to_py(Data.from_py(once)) == once or "nan" in str(data)
    assert Data(ImmutableData.to_py(data)) == Data(once)
    assert hash(data) == hash(Data(data))
    assert Data(data) == data


@given(DATA, DATA, DATA)
def test_the_order_is_total(a, b, c):
    assert (a < b) + (b < a) + (a == b) == 1
    assert (a <= b) == (not b < a)
    low, middle, high = sorted((a, b, c))
    assert low <= middle <= high
    assert low <= high
    if a == b:
        assert hash(a) == hash(b)
    if a < b < c:
        assert a < c


def test_types_are_ordered_before_values():
    row = [None, True, Count(9), -9, -9.0, "", "1.1.1.1", "10.0.0.0/8", Port(), 0, 0, Enum("")]
    row[6] = Address.parse("1.1.1.1")
    row[7] = Subnet.parse("10.0.0.0/8")
    row[9], row[10] = Timestamp(), Timespan()
    data = [Data(value) for value in [*row, set(), {}, []]]

    assert [d.get_type() for d in data] == list(DataType)
    assert all(low < high for low, high in pairwise(data))


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (False, True),
        ("z", "é"),
        ("a", "aa"),
        ([1], [1, 1]),
        ([1, 1], [2]),
        ({1}, {1, 2}),
        ({1: 2}, {1: 3}),
        ({1: 1}, {1: 1, 2: 1}),
        ({1: 3}, {2: 0}),
        (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("10.0.0.0/9")),
        (Port(80, Port.UDP), Port(81, Port.TCP)),
        (Port(80, Port.TCP), Port(80, Port.UDP)),
        (math.inf, math.nan),
    ],
)
def test_values_of_one_type_are_ordered(smaller, larger):
    assert Data(smaller) < Data(larger)


def test_nan_equals_itself_and_zeros_are_one():
    assert Data(math.nan) == Data(-math.nan)
    assert Data(0.0) == Data(-0.0)
    assert len(Data({0.0, -0.0, math.nan, float("nan")}).as_set()) == 2


def test_equal_numbers_of_different_types_differ():
    assert len({Data(1), Data(1.0), Data(True), Data(Count(1))}) == 4
    assert Data(1) != 1


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64, 1 << 50_000], ids=range(4))
def test_an_integer_out_of_range_raises(value):
    """Zeek Broker 1.4 makes it the boolean T."""
    with pytest.raises(DataOverflow, match="signed 64-bit integer"):
        Data(value)


@pytest.mark.parametrize("value", [object(), 1 + 2j, bytearray(b"x"), range(3), Data])
def test_values_outside_the_model_raise(value):
    with pytest.raises(UnsupportedData, match="no type for"):
        Data([value])


def test_strings_without_utf8_form_raise():
    with pytest.raises(InvalidData, match="UTF-8"):
        Data("\ud800")


def test_bytes_that_are_no_text_stay_bytes():
    assert Data.to_py(Data(b"\xff")) == b"\xff"
    assert Data.to_py(Data(b"ab")) == "ab"
    assert Data("ab").as_string() == b"ab"
    assert str(Data(b"\xff")) == r"\xff"


def test_nesting_is_bounded_and_a_list_in_itself_raises():
    value = []
    for _ in range(DEPTH_LIMIT - 1):
        value = [value]
    loop = []
    loop.append(loop)

    Data([value])
    for deep in ([[value]], loop):
        with pytest.raises(InvalidData, match="deeper than 100"):
            Data(deep)


def test_subclasses_of_scalars_become_plain():
    class Level(enum.IntEnum):
        HIGH = 7

    assert type(Data(Level.HIGH).value) is int
    assert Data(enum.StrEnum("Word", {"A": "a"}).A) == Data("a")


def test_members_of_sets_and_keys_are_hashable():
    """Zeek Broker 1.4 raises TypeError here."""
    inner = Data({Data({1}), Data({2: Data({3})})})

    made = Data.to_py(inner)

    assert made == {frozenset({1}), FrozenTable({2: frozenset({3})})}
    assert Data(made) == inner


def test_immutable_values_cannot_be_changed():
    made = ImmutableData.to_py(Data([{1}, {"k": [{2}]}, {3: {4: {5}}}]))

    assert made == (frozenset({1}), {"k": (frozenset({2}),)}, {3: {4: frozenset({5})}})
    assert type(made[1]) is MappingProxyType
    assert type(made[2][3]) is MappingProxyType
    with pytest.raises(TypeError):
        made[1]["k"] = 1


def test_read_only_mappings_are_tables():
    assert Data(MappingProxyType({1: 2})) == Data(FrozenTable({1: 2})) == Data({1: 2})


def test_to_py_rounds_times_to_microseconds():
    assert Data.to_py(Data(Timespan(1500))) == datetime.timedelta(microseconds=2)
    assert Data.to_py(Data(Timespan(2500))) == datetime.timedelta(microseconds=2)
    assert Data.to_py(Data(Timestamp(Timespan(-1)))) == datetime.datetime(
        1970, 1, 1, tzinfo=UTC
    )


def test_a_time_without_zone_is_local():
    naive = MOMENT.replace(tzinfo=None)

    assert Data(naive) == Data(naive.astimezone())


@pytest.mark.parametrize(
    "value", [datetime.timedelta.max, datetime.datetime.max.replace(tzinfo=UTC)]
)
def test_times_that_do_not_fit_raise(value):
    with pytest.raises(DataOverflow, match="64 bits"):
        Data(value)


ACCESSORS = {
    DataType.Nil: ("as_none", None),
    DataType.Boolean: ("as_boolean", True),
    DataType.Count: ("as_count", 5),
    DataType.Integer: ("as_integer", 5),
    DataType.Real: ("as_real", 5.0),
    DataType.String: ("as_string", b"5"),
    DataType.Address: ("as_address", Address()),
    DataType.Subnet: ("as_subnet", Subnet()),
    DataType.Port: ("as_port", Port()),
    DataType.Timestamp: ("as_timestamp", 5.0),
    DataType.Timespan: ("as_timespan", 5.0),
    DataType.EnumValue: ("as_enum_value", Enum("5")),
    DataType.Set: ("as_set", Set([Data(5)])),
    DataType.Table: ("as_table", Table([(Data(5), Data())])),
    DataType.Vector: ("as_vector", Vector([Data(5)])),
}


@pytest.mark.parametrize("kind", DataType)
def test_accessors_give_their_type_and_refuse_others(kind):
    name, value = ACCESSORS[kind]
    given_as = {DataType.Count: Count(5), DataType.Timestamp: Timestamp(5.0)}
    given_as[DataType.Timespan] = Timespan(5.0)

    assert getattr(Data(given_as.get(kind, value)), name)() == value
    other = Data("text") if kind is not DataType.String else Data(1)
    with pytest.raises(UnsupportedData, match=f"not {kind.name}"):
        getattr(other, name)()


def test_containers_behave_as_their_python_kin():
    vector, table = Data([3, 1, 3]).as_vector(), Data({2: "b", 1: "a"}).as_table()

    assert [str(item) for item in vector] == ["3", "1", "3"]
    assert vector[1:] == Vector([Data(1), Data(3)])
    assert (len(vector), Data(1) in vector, Data(2) in vector) == (3, True, False)
    assert [str(key) for key in table] == ["1", "2"]
    assert table[Data(1)] == Data("a")
    assert Data(9) not in table
    assert [repr(vector), repr(table)] == ["Vector[3, 1, 3]", "Table{1 -> a, 2 -> b}"]
    assert repr(Data({2, 1}).as_set()) == "Set{1, 2}"
    assert len({vector, table, Data({1}).as_set(), vector[:]}) == 3


@given(st.lists(DATA, max_size=6))
def test_sets_iterate_in_order_without_doubles(items):
    found = list(Data(set(items)).as_set())

    assert found == sorted(set(items))


def test_of_equal_keys_of_a_table_the_last_counts():
    table = Table([(Data(1), Data("a")), (Data(0), Data()), (Data(1), Data("b"))])

    assert table == Table([(Data(0), Data()), (Data(1), Data("b"))])
    assert (len(table), Data(1) in table, "1" in table) == (2, True, False)
    with pytest.raises(KeyError):
        table[Data(2)]


def _vectors_with_one_hash():
    numbers = [factor * (2**61 - 1) for factor in range(-4, 5)]
    return [Data(row) for row in product(numbers, repeat=3)]


def test_keys_of_a_peer_cannot_be_chosen_to_have_one_hash():
    assert len(set(map(hash, product([0, 2**61 - 1], repeat=3)))) == 1
    assert len(set(map(hash, _vectors_with_one_hash()))) == 9**3


def test_members_that_python_would_find_slowly_are_refused():
    members = Data.of(DataType.Set, Set(_vectors_with_one_hash()))
    table = Data.of(DataType.Table, Table((key, Data()) for key in members.as_set()))

    for data in (members, table):
        for to_py in (Data.to_py, ImmutableData.to_py):
            with pytest.raises(InvalidData, match="have the same hash"):
                to_py(data)
