"""Payloads that others append to do harm: they are refused, or shown as they can be."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from cbor2 import CBORTag, dumps

from callboard.cli.app import main
from callboard.commitlog import CommitLog, InvalidRecord, LogCorrupt
from callboard.commitlog.columns import Cbor
from callboard.commitlog.json_text import payload_json, to_json
from callboard.log_service.append import columns_of

#: Forty lists, each of which has the one before twice: 445 bytes that stand for 2 to the 40th.
DOUBLINGS = b"\x98\x29\xd8\x1c\x80" + b"".join(
    b"\xd8\x1c\x82" + b"\xd8\x1d\x18%c" % n * 2 for n in range(40)
)
ITSELF = bytes.fromhex("d81c81d81d00")
SAME_TEXT = bytes.fromhex("d90100826568656c6c6fd81900")


@pytest.mark.parametrize("data", [DOUBLINGS, ITSELF, SAME_TEXT])
def test_a_payload_that_refers_to_its_parts_is_refused(data):
    with CommitLog() as log:
        log.append("/a", Cbor(data))
        (record,) = log.read()
        with pytest.raises(LogCorrupt, match="record 0 is not CBOR"):
            _ = record.payload
    assert payload_json(data, False) is None
    with pytest.raises(InvalidRecord, match="malformed record"):
        columns_of([("/a", data, False)])


def nested(levels):
    value = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_what_no_reader_could_decode_is_not_appended():
    with CommitLog() as log:
        log.append("/a", nested(399))
        for payload in (nested(401), nested(700)):
            with pytest.raises(InvalidRecord, match="nested deeper|nesting depth"):
                log.append("/a", payload)
            with pytest.raises(InvalidRecord, match="nested deeper|nesting depth"):
                log.append_batch([1, payload], topic="/a")
        log.append("/a", [[n] for n in range(1000)])  # many levels beside each other are fine
        assert [each.payload for each in log.read()] == [
            nested(399),
            [[n] for n in range(1000)],
        ]


HUGE = 10**5000


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (HUGE, hex(HUGE)),
        ({"a": [-HUGE]}, {"a": [hex(-HUGE)]}),
        ({HUGE: 1}, {hex(HUGE): 1}),
        ({(HUGE,): 1}, {"<a tuple>": 1}),
        (Fraction(HUGE, 3), "<a Fraction>"),
        (CBORTag(9999, HUGE), "<a CBORTag>"),
        (2**64, 2**64),
        (Decimal("1E+999999"), "1E+999999"),
    ],
    ids=lambda _: "",  # pytest writes integers out
)
def test_integers_with_too_many_digits_are_shown(tmp_path, capsys, value, shown):
    assert json.loads(to_json(value)) == json.loads(payload_json(dumps(value), False)) == shown
    with CommitLog(tmp_path / "log") as log:
        log.append("/a", value)
    assert main(["log", "cat", str(tmp_path / "log"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["payload"] == shown
    assert main(["log", "cat", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out.startswith("0 ")


def test_topics_forge_no_lines(tmp_path, capsys):
    with CommitLog(tmp_path / "log") as log:
        log.append("/a\n1 2026-01-01T00:00:00.000000Z /forged 1", 0)
    for command, count in (("cat", 1), ("tail", 1), ("stats", 3)):
        assert main(["log", command, str(tmp_path / "log")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == count
        assert r"/a\n1 2026" in lines[-1]


@pytest.mark.parametrize("bad", [{"a": 1}, 5, 1.5, ["t", {}], {"t"}, object(), b"t"])
@pytest.mark.parametrize("name", ["topic", "sender"])
def test_a_topic_or_sender_of_another_kind_is_refused_with_a_typed_error(bad, name):
    log = CommitLog(None)
    given = {"topic": "t", "sender": "s", name: bad}
    with pytest.raises(InvalidRecord):
        log.append(given["topic"], 1, sender=given["sender"])
    with pytest.raises(InvalidRecord):
        log.append_batch([1, 2], **given)
    with pytest.raises(InvalidRecord):
        log.producer("p").append(given["topic"], 1, sender=given["sender"])
    assert log.end == 0


@pytest.mark.parametrize("bad", [5, {"a"}, [{}, {}], [[], None], object()])
@pytest.mark.parametrize("name", ["key", "headers"])
def test_keys_and_headers_of_another_kind_are_refused_with_a_typed_error(bad, name):
    log = CommitLog(None)
    if (name, bad) == ("headers", [{}, {}]):
        bad = [{}, 5]
    with pytest.raises(InvalidRecord):
        log.append("t", 1, **{name: bad})
    with pytest.raises(InvalidRecord):
        log.append_batch([1, 2], topic="t", **{name: bad})


@pytest.mark.parametrize("bad", [{"a": 1}, {1, 2}, "text", b"bytes", 5, None])
def test_what_is_no_list_of_payloads_is_refused_with_a_typed_error(bad):
    with pytest.raises(InvalidRecord, match="takes a list of payloads"):
        CommitLog(None).append_batch(bad, topic="t")
