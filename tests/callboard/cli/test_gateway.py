"""`callboard gateway …`."""

import json
import signal

import pytest

from callboard.cli import main
from tests.callboard.cli.process import start_command
from tests.polling import eventually

CONFIG = """
[[modules]]
name = "clock"
module = "timer"
args = { period = 0.01 }

[[modules]]
name = "loud"
module = "filter"
args = { where = { load = { ">" = 0.5 } } }

[[modules]]
name = "file"
module = "file"
args = { path = "OUT" }

[[links]]
source = "clock"
sink = "loud"

[[links]]
source = "loud"
sink = "file"
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "gw.toml"
    path.write_text(CONFIG.replace("OUT", str(tmp_path / "out.jsonl")))
    return path


def written(tmp_path, *lines):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def line(**fields):
    return json.dumps(fields)


def test_check_prints_the_size_of_a_valid_configuration(config, capsys):
    assert main(["gateway", "check", str(config)]) == 0
    assert "3 modules, 2 links" in capsys.readouterr().out
    assert main(["gateway", "check", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"modules": 3, "links": 2}


@pytest.mark.parametrize("command", ["check", "list", "run"])
def test_each_mistake_is_one_line_with_file_and_key_and_exit_code_2(config, capsys, command):
    config.write_text(CONFIG.replace("0.01", "0").replace('sink = "file"', 'sink = "*"'))

    assert main(["gateway", command, str(config)]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = captured.err.splitlines()
    assert f"{config}: modules.0.args.period = 0" in first
    assert f"{config}: links.1.sink = '*'" in second
    assert not (config.parent / "out.jsonl").exists()


def test_list_shows_modules_and_links(config, capsys):
    assert main(["gateway", "list", str(config)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["MODULE", "LOADER", "IS", "RECEIVES", "FROM"]
    assert "loud    python  filter  clock" in out

    assert main(["gateway", "list", str(config), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed["modules"]] == ["clock", "loud", "file"]
    assert listed["links"][1] == {"source": "loud", "sink": "file"}


def test_a_dry_run_publishes_a_file_in_the_place_of_its_sources(config, tmp_path, capsys):
    given = written(
        tmp_path,
        line(source="clock", content={"load": 0.9}, properties={"k": "v"}),
        line(source="clock", content='{"load": 0.1}'),
        line(source="clock", content={"load": 0.7}),
    )

    assert main(["gateway", "run", str(config), "--input", str(given), "--json"]) == 0

    told = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert (told["loud"]["received"], told["file"]["received"]) == (3, 2)
    out = [json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert out[0] == {"content": '{"load": 0.9}', "properties": {"k": "v"}}
    assert len(out) == 2


def test_a_dry_run_that_loses_something_fails(config, tmp_path, capsys):
    given = written(tmp_path, line(source="clock", content="this is no JSON"))

    assert main(["gateway", "run", str(config), "--input", str(given)]) == 1

    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert ["loud", "0", "1", "0", "0"] in rows


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "in.jsonl:1: a line is not JSON"),
        ("5", "in.jsonl:1: a line is a int"),
        (line(content="x"), "in.jsonl:1: source = None"),
        (line(source="nobody", content="x"), "in.jsonl:1: there is no module 'nobody'"),
        (line(source="clock"), "in.jsonl:1: a line has neither content nor hex"),
        (line(source="clock", hex="xyz"), "in.jsonl:1: a line is not a message"),
        (line(source="clock", content="", properties=[1]), "in.jsonl:1: a line is not"),
    ],
)
def test_unusable_input_is_reported_in_one_line_with_exit_code_2(
    config, tmp_path, capsys, text, words
):
    given = written(tmp_path, text)

    assert main(["gateway", "run", str(config), "--input", str(given)]) == 2

    (said,) = capsys.readouterr().err.splitlines()
    assert words in said
    missing = str(tmp_path / "none")
    assert main(["gateway", "run", str(config), "--input", missing]) == 2


def test_a_gateway_runs_until_a_signal(config, tmp_path):
    config.write_text(
        CONFIG.replace("OUT", str(tmp_path / "out.jsonl")).replace(
            'args = { where = { load = { ">" = 0.5 } } }', "args = { properties = {} }"
        )
    )
    with start_command("gateway", "run", config, "--json") as process:
        try:
            assert json.loads(process.stdout.readline())["modules"] == 3
            out = tmp_path / "out.jsonl"
            eventually(lambda: out.exists() and len(out.read_bytes().splitlines()) >= 3)
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 0
        finally:
            process.kill()
    told = {each["name"]: each for each in json.loads(said)}
    assert told["file"]["received"] >= 3
    assert told["file"]["lost"] == {}
