import re
from pathlib import Path

import pytest

from callboard import Limits
from callboard.operation.configuration import (
    VARIABLES,
    InvalidConfiguration,
    NodeConfiguration,
    load_configuration,
)

GOOD = """
app = "shop.py"
name = "shop"
listen = "127.0.0.1:4222"
join = ["basp://10.0.0.1:4222"]
secret_file = "secret"
log_level = "info"
health = "[::1]:9464"
drain_timeout = 12.5
spawnable = { counter = "Counter", other = "shop.parts:Other" }

[limits]
links = 100

[[children]]
class = "Counter"
args = [40]
name = "till"
restart = "transient"
"""

BAD = """
name = 5
listen = "here"
lisen = "127.0.0.1:1"
join = ["basp://a:1", "nonsense"]
log_level = "loud"
app = "missing.py"
[limits]
links = 0
payload = "large"
lnks = 3
[tls]
certificate = "no.pem"
[[children]]
restart = "always"
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "shop.py").write_text("")
    (tmp_path / "secret").write_text("s3cret\n")

    def write_file(text):
        path = tmp_path / "node.toml"
        path.write_text(text)
        return path

    return write_file


def mistakes(path=None, options=None, environment=None):
    with pytest.raises(InvalidConfiguration) as caught:
        load_configuration(path, options, environment or {})
    return caught.value


def test_a_file_says_everything_about_a_node(write):
    path = write(GOOD)

    config = load_configuration(path, {}, {})

    assert config.app == path.parent / "shop.py"
    assert config.secret_file == path.parent / "secret"
    assert (config.name, config.listen, config.drain_timeout) == (
        "shop",
        "127.0.0.1:4222",
        12.5,
    )
    assert Limits(**dict(config.limits)) == Limits(links=100)
    (child,) = config.children
    assert (child.actor_class, child.args, child.restart) == ("Counter", [40], "transient")


def test_nothing_has_to_be_said():
    config = load_configuration(None, {}, {})

    assert config == NodeConfiguration()
    assert Limits(**dict(config.limits)) == Limits()


def test_every_mistake_is_told_at_once_with_file_key_value_and_expectation(write):
    path = write(BAD)

    lines = mistakes(path).lines

    told = {re.split(" = |: ", line.removeprefix(f"{path}: "))[0]: line for line in lines}
    assert set(told) == {
        "name",
        "listen",
        "lisen",
        "join.1",
        "log_level",
        "app",
        "limits.links",
        "limits.payload",
        "limits.lnks",
        "tls.certificate",
        "children.0.class",
        "children.0.restart",
    }
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert told["listen"].endswith(
        "= 'here': 'here' is not HOST:PORT; write it like 127.0.0.1:4222"
    )
    assert told["limits.links"].endswith("limits.links = 0: input should be greater than 0")
    assert "known keys are links, handshakes" in told["limits.lnks"]
    assert "'nonsense' is not an address" in told["join.1"]
    assert "this key is required" in told["children.0.class"]


def test_variables_stand_above_the_file_and_options_above_both(write):
    path = write('name = "file"\nlisten = "127.0.0.1:1"\nhealth = "127.0.0.1:2"')
    environment = {
        "CALLBOARD_NAME": "variable",
        "CALLBOARD_LISTEN": "127.0.0.1:3",
        "CALLBOARD_JOIN": "basp://a:1, basp://b:2",
        "CALLBOARD_DRAIN_TIMEOUT": "5",
    }

    config = load_configuration(path, {"name": "option"}, environment)

    assert (config.name, config.listen, config.health) == (
        "option",
        "127.0.0.1:3",
        "127.0.0.1:2",
    )
    assert config.join == ["basp://a:1", "basp://b:2"]
    assert config.drain_timeout == 5.0


def test_every_variable_stands_for_a_key():
    assert set(VARIABLES.values()) <= set(NodeConfiguration.model_fields)


def test_a_mistake_names_the_option_or_variable_that_made_it(write):
    error = mistakes(write(""), {"listen": "here"}, {"CALLBOARD_LOG_LEVEL": "loud"})

    assert error.is_misuse
    assert sorted(line.partition(" = ")[0] for line in error.lines) == [
        "--listen",
        "CALLBOARD_LOG_LEVEL",
    ]
    assert not mistakes(None, {}, {"CALLBOARD_LOG_LEVEL": "loud"}).is_misuse


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"name = ", "it is not TOML: Invalid value (at end of document)"),
        (b"\xff", "it is not UTF-8 text"),
        (None, "give the path of a TOML file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, content, line):
    path = tmp_path / "node.toml"
    if content is not None:
        path.write_bytes(content)

    (told,) = mistakes(path).lines

    assert str(path) in told
    assert line in told


def test_paths_of_variables_begin_where_the_command_runs(write, tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "node.toml"
    path.write_text("")
    write("")
    monkeypatch.chdir(tmp_path)

    config = load_configuration(path, {"app": Path("shop.py")}, {})

    assert config.app == tmp_path / "shop.py"


def test_logs_are_served_from_folders_beside_the_file(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text(
        'serve_logs = { cpu = "logs/cpu", "a-b" = "/x" }\nserve_logs_at = "127.0.0.1:0"'
    )
    config = load_configuration(path, {}, {})
    assert config.serve_logs == {"cpu": tmp_path / "logs/cpu", "a-b": Path("/x")}
    assert config.serve_logs_at == "127.0.0.1:0"
    path.write_text('serve_logs = { "a/b" = "x" }\nserve_logs_at = "here"')
    with pytest.raises(InvalidConfiguration) as refused:
        load_configuration(path, {}, {})
    assert any("is not a log name" in line for line in refused.value.lines)
    assert any("serve_logs_at" in line for line in refused.value.lines)
