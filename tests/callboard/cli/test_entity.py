"""`callboard entity …`: types, owners, stored events, and copies of a journal."""

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callboard import Node, Rights
from callboard.cli import main
from callboard.commitlog import LogReader
from tests.callboard.entity.journal.carts import Cart
from tests.polling import eventually

Run = Callable[..., tuple[int, str, str]]

CODE = """
from dataclasses import dataclass
from callboard import Entity, event, message
from tests.callboard.entity.journal.carts import Cart

class Needy(Entity):
    def __init__(self, needed) -> None:
        pass
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["entity", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/shop.db"


@pytest.fixture
def node(url: str) -> Iterator[Node]:
    with Node("shop") as made:
        made.listen("127.0.0.1", 0)
        made.host(Cart, state=url)
        for key in ("u-1", "u-2"):
            for item in ("tea", "milk", "nuts"):
                made.entity(Cart, key).ask(item).result(10)
        yield made


def test_ls_and_where_list_the_types_entities_and_owner_of_a_key_in_a_cluster(
    node: Node, run: Run
) -> None:
    code, out, _ = run("ls", node.address)
    assert code == 0
    head, row = out.splitlines()
    assert head.split() == [
        *("NODE", "TYPE", "STATE", "SLOTS", "ACTIVE", "ACTIVATED", "EVENTS", "MOVES")
    ]
    assert row.split()[1] == Cart.name
    assert row.split()[3:] == ["256", "2", "2", "6", "0"]

    code, out, _ = run("ls", node.address, "--type", Cart.name, "--json")
    rows = json.loads(out)["rows"]
    assert [(row["key"], row["number"], row["node"]) for row in rows] == [
        ("u-1", 3, "shop"),
        ("u-2", 3, "shop"),
    ]

    code, out, _ = run("where", node.address, "u-1", "--json")
    told = json.loads(out)
    assert (told["node_id"], told["slot"], told["epoch"]) == (
        node.node_id.hex(),
        rows[0]["slot"],
        1,
    )
    assert told["active"] is True
    code, out, _ = run("where", node.address, f"basp:///{Cart.name}/new")
    assert "on shop" in out
    assert "it is not active" in out


def test_ls_lists_the_types_and_keys_in_a_state(node: Node, run: Run, url: str) -> None:
    _, out, _ = run("ls", "--state", url)
    assert out.splitlines()[1].split() == [Cart.name, "6", "journal-tests.Added"]
    _, out, _ = run("ls", "--state", url, "--type", Cart.name, "--limit", 1)
    assert out.splitlines()[1:] == [
        f"{Cart.name}  u-1  3",
        "… there are more; continue with --after 'u-1'",
    ]
    _, out, _ = run("ls", "--state", url, "--type", Cart.name, "--after", "u-1", "--json")
    assert json.loads(out) == {"rows": [{"type": Cart.name, "key": "u-2", "number": 3}]}


def test_the_history_of_a_key(node: Node, run: Run, url: str) -> None:
    _, out, _ = run("history", "u-2", "--state", url, "--json", "--after", 1)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["number"], row["position"], row["fields"]["item"]) for row in rows] == [
        (2, 5, "milk"),
        (3, 6, "nuts"),
    ]
    _, out, err = run("history", f"basp:///{Cart.name}/u-2", "--state", url, "--limit", 1)
    assert out.endswith('u-2  1  journal-tests.Added  {"item": "tea", "cents": 0}\n')
    assert "--after 1" in err


def test_the_state_after_an_event(node: Node, run: Run, url: str, tmp_path: Path) -> None:
    code = tmp_path / "shop.py"
    code.write_text(CODE)
    _, out, _ = run("at", "u-1", 2, "--state", url, "--code", code, "--json")
    assert json.loads(out)["state"] == {"items": ["tea", "milk"]}
    _, out, _ = run("at", "u-1", 0, "--state", url, "--code", code)
    assert out.splitlines()[1:] == ["  items = []"]
    _, out, _ = run("at", "u-1", 1, "--state", url)
    assert out.splitlines()[1:] == ['  1  journal-tests.Added  {"item": "tea", "cents": 0}']


def test_events_that_were_dropped_are_reported(node: Node, run: Run, url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:")) as connection:
        connection.execute("DELETE FROM callboard_events WHERE key = 'u-1' AND number = 1")
    code, _, err = run("at", "u-1", 2, "--state", url)
    assert code == 1
    assert "were deleted" in err


def test_the_journal_is_printed_and_copied(
    node: Node, run: Run, url: str, tmp_path: Path
) -> None:
    _, out, _ = run("journal", Cart.name, "--state", url, "--json", "--after", 4)
    assert [json.loads(line)["position"] for line in out.splitlines()] == [5, 6]
    _, out, _ = run("journal", Cart.name, "--state", url, "--limit", 2)
    assert len(out.splitlines()) == 2
    _, out, _ = run("journal", Cart.name, "--state", url, "--limit", 2, "-f")
    assert len(out.splitlines()) == 2

    log = tmp_path / "log"
    _, out, _ = run("journal", Cart.name, "--state", url, "--to-log", log, "--json")
    assert json.loads(out) == {"events": 6, "position": 6, "log": str(log)}
    _, out, _ = run("journal", Cart.name, "--state", url, "--to-log", log)
    assert out == f"0 events appended to {log}\n"
    assert LogReader(log).end == 6


@pytest.mark.parametrize(
    ("code", "arguments", "text"),
    [
        (2, ("ls",), "pass the ADDRESS of a node, or --state URL"),
        (2, ("ls", "basp://127.0.0.1:1", "--state", "sqlite:x"), "or --state URL"),
        (1, ("ls", "basp://127.0.0.1:1"), "no node answers"),
        (2, ("history", "u-1", "--state", "nonsense"), "is not the URL of a state"),
        (1, ("history", "u-1", "--state", "sqlite:/none/a.db"), "there is no file"),
        (1, ("history", "none", "--state", "{url}"), "no entity 'none'"),
        (2, ("history", "u-1", "--state", "{url}", "--type", "Crat"), "no type 'Crat'"),
        (2, ("at", "u-1", "4", "--state", "{url}"), "a number up to 3"),
        (2, ("at", "u-1", "1", "--state", "{url}", "--code", "/none.py"), "no file"),
        (2, ("journal", "Crat", "--state", "{url}"), "no type 'Crat'"),
        (2, ("where", "{address}", "u-1", "--type", "Crat"), "use --type, one of"),
        (2, ("ls", "{address}", "--type", "Crat"), "no node in reach hosts 'Crat'"),
        (2, ("where", "{address}", ""), "a key must have 1 to 256 bytes"),
        (
            2,
            ("journal", Cart.name, "--state", "{url}", "--limit", "1", "--to-log", "x"),
            "omit one of them",
        ),
    ],
)
def test_each_mistake_is_reported_in_one_line(
    node: Node, run: Run, url: str, code: int, arguments: tuple[str, ...], text: str
) -> None:
    filled = [each.format(url=url, address=node.address) for each in arguments]
    found, out, err = run(*filled)
    assert (found, out) == (code, "")
    assert text in err
    assert err.count("\n") == 1


def test_a_missing_driver_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "callboard.entity.state.postgresql", raising=False)
    found, out, err = run("ls", "--state", "postgresql://db/shop")
    assert (found, out) == (1, "")
    assert "(psycopg): pip install 'callboard[postgresql]'" in err


def test_a_class_that_cannot_be_replayed_is_reported(
    node: Node, run: Run, url: str, tmp_path: Path
) -> None:
    code = tmp_path / "needy.py"
    code.write_text(CODE + f"\nCart = None\nNeedy.name = {Cart.name!r}\n")
    found, _, err = run("at", "u-1", 1, "--state", url, "--code", code)
    assert found == 1
    assert "Needy cannot be replayed: TypeError" in err
    code.write_text("x = 1\n")
    found, _, err = run("at", "u-1", 1, "--state", url, "--code", code)
    assert found == 2
    assert "it has: none" in err


def test_slots_move_to_another_host_and_back(node: Node, run: Run, url: str) -> None:
    with Node("bank") as bank:
        bank.connect(node.address)
        bank.host(Cart, state=url)
        for target in (node, bank):
            code, out, err = run("move", node.address, "u-1", "u-2", "--to", target.name)
            assert (code, err) == (0, "")
            assert out == f"{Cart.name}: 2 slots are now on {target.name}\n"
            for key in ("u-1", "u-2"):
                _, out, _ = run("where", node.address, key, "--json")
                assert json.loads(out)["node_id"] == target.node_id.hex()
                assert len(node.entity(Cart, key).ask("more").result(10) * "x") > 3
        bank_id = bank.node_id.hex()
        _, out, _ = run("move", node.address, "--slots", "0-255", "--to", bank_id, "--json")
        assert json.loads(out)["slots"] == list(range(256))
        assert node.entity_stats()[0].slots == 0

        code, out, _ = run("move", node.address, "--slots", "0-255", "--back")
        assert out == f"{Cart.name}: 256 slots are no longer bound to a node\n"
        eventually(lambda: 64 < node.entity_stats()[0].slots < 192)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("u-1",), "use --to NODE, or --back"),
        (("u-1", "--to", "x", "--back"), "use --to NODE, or --back"),
        (("--to", "shop"), "pass keys, or --slots"),
        (("u-1", "--slots", "1", "--to", "shop"), "pass keys, or --slots"),
        (("--slots", "1-", "--to", "shop"), "are not slots"),
        (("--slots", "256", "--to", "shop"), "slots are 0 to 255"),
        (("--slots", "9-3", "--to", "shop"), "slots are 0 to 255"),
        (("u-1", "--to", "nobody"), "no host of journal-tests.Cart is called 'nobody'"),
    ],
)
def test_invalid_moves_are_refused(
    node: Node, run: Run, arguments: tuple[str, ...], text: str
) -> None:
    code, out, err = run("move", node.address, *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1


def test_moves_need_the_right_to_host(tmp_path: Path, run: Run) -> None:
    look = Rights(inspect=True, entities=[Cart.name])
    secret = tmp_path / "secret"
    secret.write_text("s1")
    with Node("shop", secrets={"looker": "s1"}, permissions={"looker": look}) as shop:
        shop.listen("127.0.0.1", 0)
        shop.host(Cart, state=f"sqlite:{tmp_path}/other.db")
        proof = ("--secret-file", secret)
        code, _, _ = run("where", shop.address, "u-1", *proof)
        assert code == 0
        code, _, err = run("move", shop.address, "u-1", "--to", "shop", *proof)
        assert code == 1
        assert "no right 'host'" in err
