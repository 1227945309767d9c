import cbor2
import pytest

from callboard.basp.errors import MalformedPayload
from callboard.cbor.reader import PYTHON_TAGS, CborReader, bad_content, read_as
from callboard.cbor.tags import CBOR2_TAGS, TRUSTED_TAGS, TUPLE

POINT = 48990
UNKNOWN = 48991
PLAIN = CborReader("numbers", max_depth=4)


def test_one_item_fills_the_payload_exactly():
    assert PLAIN.read(b"\x82\x01\x02") == [1, 2]
    with pytest.raises(MalformedPayload):
        PLAIN.read(b"\x83\x01\x02")
    with pytest.raises(MalformedPayload, match="follow the last item"):
        PLAIN.read(b"\x81\x01\x02")
    with pytest.raises(MalformedPayload, match="follow the last item"):
        PLAIN.read(b"\x01\x02")


def test_a_package_reads_its_own_tags_and_those_of_python():
    table = {**PYTHON_TAGS, POINT: read_as(list, lambda parts: complex(*parts), "point")}
    reader = CborReader("points", table, max_depth=8)

    assert reader.read(cbor2.dumps(cbor2.CBORTag(TUPLE, [1]))) == (1,)
    assert reader.read(cbor2.dumps([cbor2.CBORTag(POINT, [1, 2])])) == [1 + 2j]
    with pytest.raises(MalformedPayload, match="point cannot be made of this str"):
        reader.read(cbor2.dumps(cbor2.CBORTag(POINT, "1, 2")))
    with pytest.raises(MalformedPayload, match="ValueError|TypeError"):
        reader.read(cbor2.dumps(cbor2.CBORTag(POINT, ["one"])))


@pytest.mark.parametrize("tag", [*CBOR2_TAGS, TUPLE, UNKNOWN])
def test_a_tag_that_is_not_in_the_table_is_refused(tag):
    with pytest.raises(MalformedPayload, match=f"CBOR tag {tag} is not one that numbers use"):
        PLAIN.read(cbor2.dumps(cbor2.CBORTag(tag, b"x")))


def test_cbor2_decodes_the_tags_that_it_is_trusted_with():
    reader = CborReader("numbers", max_depth=4, trusted=TRUSTED_TAGS)

    assert reader.read(cbor2.dumps(2**70)) == 2**70


def test_raw_tags_are_returned_as_tags():
    reader = CborReader("points", max_depth=8, raw_tags={POINT})

    assert reader.read(cbor2.dumps(cbor2.CBORTag(POINT, 1))) == cbor2.CBORTag(POINT, 1)
    with pytest.raises(MalformedPayload, match="not one that points use"):
        reader.read(cbor2.dumps(cbor2.CBORTag(UNKNOWN, 1)))


def test_maps_are_refused_where_there_are_none():
    assert PLAIN.read(b"\xa0") == {}
    with pytest.raises(MalformedPayload, match="numbers must not contain maps"):
        CborReader("numbers", max_depth=4, has_maps=False).read(b"\xa0")


def test_arrays_become_tuples_for_a_reader_of_immutable_values():
    reader = CborReader("numbers", max_depth=4, is_immutable=True)

    assert reader.read(b"\x82\x01\x80") == (1, ())


def test_containers_nest_as_deep_as_the_limit_says():
    assert PLAIN.read(b"\x81\x81\x81\x80") == [[[[]]]]
    with pytest.raises(MalformedPayload, match="depth"):
        PLAIN.read(b"\x81\x81\x81\x81\x80")


def test_bad_content_names_the_value_and_the_type_of_the_content():
    assert str(bad_content([], "port")) == "port cannot be made of this list"
