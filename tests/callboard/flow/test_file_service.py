"""Many handlers, one owner of the files."""

import threading
from collections import defaultdict

import pytest

from callboard.flow import Flow, FlowAborted, FlowRefused
from callboard.flow.errors import InvalidRule, RecordError
from callboard.flow.file_handlers import FileFactory, FileRule, load_rules
from callboard.flow.file_service import Append, FetchRecords, FileService, open_format
from callboard.flow.protocol.message import Message
from callboard.flow.record_file import read_records

RULES = """
[[rule]]
rule = '(= stream "raw")'
filepat = "{stream}.zio"

[[rule]]
rw = "r"
filepat = "{stream}.zio"

[[rule]]
rule = "named"
filepat = "{name}"
attr = { named = false }
"""


@pytest.fixture
def broker(node, start, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    root = tmp_path / "files"
    service = node.spawn(FileService, str(root))
    return start(FileFactory(node, service, load_rules(path), root))


def test_z17_many_handlers_write_one_file_in_whole_records_and_in_order(
    broker, connect, tmp_path
):
    def client(who):
        with connect(broker, attributes={"stream": "raw", "who": who}, credit=5) as flow:
            for number in range(50):
                flow.put([who, str(number)], who=who)
            assert flow.eot()["records"] == 50

    threads = [threading.Thread(target=client, args=(who,)) for who in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    order = defaultdict(list)
    for record in read_records(tmp_path / "files" / "raw.zio"):
        who, number = record.payload
        assert record.label_object["who"] == who.decode()
        order[who].append(int(number))
    assert order == {who.encode(): list(range(50)) for who in "abcdef"}


def test_what_was_written_can_be_taken(broker, connect):
    with connect(broker, attributes={"stream": "raw"}) as flow:
        for number in range(200):
            flow.put(str(number), number=number)
        assert flow.eot() == {"records": 200, "bytes": 490}
    with connect(broker, "inject", attributes={"stream": "raw"}) as flow:
        assert [dat.attributes["number"] for dat in flow] == list(range(200))


def test_the_first_rule_that_fits_wins_and_names_stay_inside(broker, connect, tmp_path):
    with connect(broker, attributes={"named": True, "name": "a/b"}) as flow:
        flow.put(b"x")
    assert len(list(read_records(tmp_path / "files" / "a" / "b"))) == 1
    with pytest.raises(FlowRefused, match="not a name inside"):
        connect(broker, attributes={"named": True, "name": "../b"})
    with pytest.raises(FlowRefused, match="no rule"):
        connect(broker, attributes={"name": "x"})


def test_a_file_that_is_not_there_is_said_so(broker, connect):
    with pytest.raises(FlowAborted, match="no file"):
        list(connect(broker, "inject", attributes={"stream": "none"}))


def test_the_service_keeps_names_inside_itself(node, tmp_path):
    service = node.spawn(FileService, str(tmp_path))

    for order in (Append("../x", (Message(label="{}").encode(),)), FetchRecords("/etc/passwd")):
        with pytest.raises(RecordError, match="not a name inside"):
            service.ask(order).result(20)
    with pytest.raises(RecordError, match="no file"):
        service.ask(FetchRecords("x")).result(20)
    with pytest.raises(RecordError, match="exceeds the message"):
        service.ask(Append("x", (b"damaged",))).result(20)
    assert service.ask(Append("x", (Message(label="{}").encode(),))).result(20) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no rule"),
        ("[[rule]]\n", "filepat is missing"),
        ('[[rule]]\nfilepat = "x"\nrw = "x"', "rw is w or r"),
        ('[[rule]]\nfilepat = "x"\nfile = 3', "has the keys"),
        ('[[rule]]\nfilepat = "x"\nrule = "(= a"', "rule 1: .*too early"),
        ("rule = 3", "no rule"),
        ("[", "rules.toml"),
    ],
)
def test_rules_of_no_use_are_said_with_their_place(tmp_path, text, why):
    path = tmp_path / "rules.toml"
    path.write_text(text)

    with pytest.raises(InvalidRule, match=why):
        load_rules(path)


def test_rules_that_are_no_text_are_said_so(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(InvalidRule, match="it is not UTF-8 text"):
        load_rules(path)


def test_rules_may_be_json(tmp_path):
    path = tmp_path / "rules.json"
    path.write_text('[{"filepat": "x", "rw": "r"}]')

    (rule,) = load_rules(path)

    assert isinstance(rule, FileRule)
    assert (rule.rw, rule.filepat) == ("r", "x")


def test_an_unknown_format_is_refused():
    with pytest.raises(RecordError, match="records or hdf5"):
        open_format("xml")


def test_a_handler_can_be_used_without_rules(node, start, tmp_path):
    from callboard.flow.factories import FlowSpawn
    from callboard.flow.file_handlers import FileWriter

    service = node.spawn(FileService, str(tmp_path))
    broker = start(FlowSpawn(node, FileWriter, service, "one.zio"))
    with Flow.connect(broker.ref, node=node, timeout=20) as flow:
        flow.put(b"x")

    assert [r.payload for r in read_records(tmp_path / "one.zio")] == [(b"x",)]
