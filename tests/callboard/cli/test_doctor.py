import importlib
import importlib.metadata
import json
import resource
import socket
from datetime import UTC, datetime

import pytest

from callboard import Node
from callboard.cli import main
from callboard.cli.options import AccessOptions
from callboard.cli.work import doctor
from callboard.support.platform.release import RELEASE


@pytest.fixture
def install(tmp_path):
    def add(name, files):
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).touch()
        importlib.invalidate_caches()  # the folder may have been looked into a moment ago
        return importlib.metadata.distributions(path=[str(tmp_path)])

    return add


def test_doctor_finds_no_problem_on_this_machine(capsys):
    code = main(["doctor", "--json"])

    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert code == 0
    assert {"python", "packages", "place", "clock", "files", "loopback"} <= set(found)
    assert {"thespian", "cbor2", "typer"} <= set(found)
    assert all(finding["status"] != "fail" for finding in found.values())
    assert found["loopback"]["text"].startswith("two nodes link, an ask takes ")


def test_a_missing_extra_is_reported_in_one_line(monkeypatch):
    wanted = [
        "cbor2>=5",
        "nosuch-one>=1; extra == 'dev'",
        "nosuch-two; extra == 'dev'",
        "nosuch-three; extra == 'docs'",
        "nosuch-four>=2",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted)

    cbor2, needed, *extras = doctor.check_requirements()

    assert (cbor2.check, cbor2.status) == ("cbor2", "ok")
    assert (needed.status, needed.step) == ("fail", "pip install 'nosuch-four>=2'")
    assert [(found.check, found.text) for found in extras] == [
        ("extra dev", "without nosuch-one, nosuch-two: only for callboard[dev]"),
        ("extra docs", "without nosuch-three: only for callboard[docs]"),
    ]


def test_a_package_that_overwrote_ours_is_reported(install):
    install("playhouse", ["playhouse/__init__.py"])
    found = list(
        doctor.check_conflicts(install("board", ["board/__init__.py", "callboard/x.py"]))
    )

    assert [(finding.status, finding.text) for finding in found] == [
        ("fail", "board 1.2 overwrites files of callboard")
    ]
    assert found[0].step == "pip uninstall board, then install callboard again"


def test_our_own_distribution_is_not_a_conflict(install):
    (found,) = doctor.check_conflicts(install("callboard", ["callboard/__init__.py"]))

    assert found.status == "ok"


@pytest.mark.parametrize(
    ("finding", "status", "step"),
    [
        (doctor.check_python((3, 10, 1)), "fail", "install Python 3.11 or newer"),
        (doctor.check_python((3, 14, 0)), "ok", ""),
        (doctor.check_clocks(datetime(1970, 1, 1, tzinfo=UTC)), "warn", "set the clock"),
        (doctor.check_clocks(datetime(2030, 1, 1, tzinfo=UTC)), "ok", ""),
        (doctor.check_files(100), "fail", "ulimit -n 8192"),
        (doctor.check_files(1024), "warn", "ulimit -n 8192"),
        (doctor.check_files(4096), "ok", ""),
        (doctor.check_files(resource.RLIM_INFINITY), "ok", ""),
        (doctor.check_place(), "ok", ""),
    ],
    ids=lambda value: getattr(value, "text", None),
)
def test_each_check_has_its_bounds(finding, status, step):
    assert finding.status == status
    assert finding.step.startswith(step)
    assert bool(finding.step) == (status != "ok")


def test_a_port_in_use_is_reported_with_exit_code_1(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["doctor", "--listen", where]) == 1
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith("fail"))
    assert where in line
    assert line.endswith("(see ss -ltnp)")
    assert doctor.check_port("127.0.0.1:0").status == "ok"


def test_an_unreachable_peer_is_a_failed_check():
    with Node("shop") as node:
        node.listen()
        found = doctor.check_peer(node.address, AccessOptions())

    assert found.status == "ok"
    assert f"{node.address} is shop, answers in " in found.text
    lost = doctor.check_peer("basp://127.0.0.1:1", AccessOptions())
    assert lost.status == "fail"
    assert lost.step


def test_doctor_prints_releases_and_warns_of_unsealed_links(monkeypatch, tmp_path):
    """The flag that a node of release 0.1 does not set is hidden here."""
    file = tmp_path / "secret"
    file.write_text("s")
    with Node("shop", secret="s") as node:
        node.listen()
        access = AccessOptions(secret_file=file)
        (release,) = doctor.check_seals(node.address, access)
        assert f"is of release {RELEASE}" in release.text
    monkeypatch.setattr("callboard.basp.handshake._BOUND", 0)
    with Node("shop", secret="s", allow_unsealed=True) as node:
        node.listen()
        access = AccessOptions(secret_file=file, allow_unsealed=True)
        _, *warned = doctor.check_seals(node.address, access)
    assert [finding.status for finding in warned] == ["warn"] * 3
    assert "a relay could change messages" in warned[0].text
    assert "accepts nodes of release 0.1" in warned[1].text
    assert warned[2].text.endswith("are not sealed: callboard doctor")


def test_doctor_prints_problems_first_and_all_successes_in_one_line():
    found = [
        doctor.Finding("python", "ok", "Python 3.11.7"),
        doctor.Finding("files", "warn", "few", "ulimit"),
        doctor.Finding("typer", "ok", "typer 1"),
        doctor.Finding("port", "fail", "taken", "ss"),
    ]

    assert doctor.report(found).splitlines() == [
        "fail  port   taken; ss",
        "warn  files  few; ulimit",
        "ok    Python 3.11.7 and 1 more checks",
    ]


def test_a_usage_error_is_reported_before_anything_is_dialed(capsys):
    assert main(["doctor", "--listen", "here"]) == 2
    assert capsys.readouterr().err == (
        "callboard: 'here' is not HOST:PORT; write it like --listen 127.0.0.1:4222\n"
    )


def test_a_node_may_be_named_without_the_scheme_of_its_address(capsys):
    with Node("shop") as shop:
        shop.listen("127.0.0.1", 0)
        address = shop.address.removeprefix("basp://")

        code = main(["doctor", address, "--json"])

    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert code == 0, found
    assert f"basp://{address} is shop" in found["peer"]["text"]
    assert "logs" not in found
