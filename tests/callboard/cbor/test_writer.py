import pytest

from callboard.cbor.reader import PYTHON_TAGS, CborReader
from callboard.cbor.tags import TRUSTED_TAGS
from callboard.cbor.writer import EncoderTable, Unserializable, encode_text, head

READER = CborReader("values", PYTHON_TAGS, max_depth=20, trusted=TRUSTED_TAGS)


@pytest.mark.parametrize(
    "value",
    [None, True, 2**70, -1, 1.5, "ä", b"x", bytearray(b"x"), (1, [2]), {1: 2}, {"a": {1}}],
)
def test_the_reader_reads_everything_that_the_table_writes(value):
    read = READER.read(EncoderTable(5).encode(value))

    assert read == value
    assert type(read) is type(value)


def test_a_package_adds_the_encoder_of_its_own_class():
    table = EncoderTable(5)
    table[complex] = lambda value, depth: (
        head(0xC0, 48990) + table.encode_array([value.real, value.imag], depth)
    )

    assert table.encode([1j]).hex().startswith("81d9bf5e82fb")


def test_the_encoder_of_a_new_class_is_searched_once():
    asked = []

    def find(_table, cls):
        asked.append(cls)
        return (lambda value, _depth: encode_text(str(value))) if cls is complex else None

    table = EncoderTable(5, find)

    assert table.encode([1j, 2j]) == table.encode(["1j", "2j"])
    assert asked == [complex]
    with pytest.raises(Unserializable):
        table.encode(object())


def test_containers_nest_as_deep_as_the_limit_says():
    table = EncoderTable(2)

    assert table.encode([[1]]) == b"\x81\x81\x01"
    with pytest.raises(Unserializable, match="nested deeper than 2 containers"):
        table.encode([[[1]]])
