"""Gateways from configurations, and mistakes in them."""

import json

import pytest

from callboard.gateway import ConfigurationError, Gateway, ModuleFailed
from callboard.gateway.configuration import read_configuration_file
from tests.callboard.gateway.shelf import entry, write

HERE = "tests.callboard.gateway.shelf"


def test_a_gateway_runs_from_a_file(tmp_path, node, shelf):
    path = write(
        tmp_path / "gw.json", entry("a"), entry("b", args={"k": 1}), links=[("a", "b")]
    )

    with Gateway.from_file(path, node=node) as gateway:
        gateway.publish("a", b"hello", {"p": "v"})
        assert shelf.made["b"].until(1)[0].properties == {"p": "v"}
        assert shelf.made["b"].args == {"k": 1}
        assert gateway.links() == (("a", "b"),)
        assert [status.name for status in gateway.modules()] == ["a", "b"]
        assert gateway.modules()[1].sources == ("a",)
    assert shelf.made["a"].calls == ["create", "start", "destroy"]
    assert gateway.wait(0)


def test_a_toml_file_configures_the_same_gateway(tmp_path, node, shelf):
    path = tmp_path / "gw.toml"
    path.write_text(
        f"""
        dead_letters = "sink"
        [[loaders]]
        type = "python"
        name = "mine"
        configuration = {{ path = "lib" }}
        [[modules]]
        name = "source"
        loader = {{ name = "mine", entrypoint = {{ "module.path" = "{HERE}:Kept" }} }}
        [[modules]]
        name = "sink"
        module = "{HERE}:Kept"
        queue = {{ limit = 5, on_full = "drop_oldest" }}
        restart = "transient"
        on_error = "crash"
        detached = true
        [[links]]
        source = "*"
        sink = "sink"
        """
    )

    with Gateway.from_file(path, node=node) as gateway:
        gateway.publish("source", b"x")
        shelf.made["sink"].until(1)
        assert gateway.modules()[1].sources == ("*",)


def test_modules_beside_the_file_can_be_imported(tmp_path, node, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside_gw.py").write_text(
        "from callboard.gateway import module\n\n"
        "@module\ndef echo(message):\n    return message\n"
    )
    path = tmp_path / "gw.json"
    path.write_text(json.dumps({"modules": [{"name": "e", "module": "beside_gw:echo"}]}))

    with Gateway.from_file(path, node=node) as gateway:
        assert gateway.modules()[0].is_started


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "\xff", '{"a": NaN'])
def test_an_invalid_configuration_is_refused_with_the_files_name(tmp_path, text):
    path = tmp_path / "gw.json"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigurationError, match=r"gw\.json: it is"):
        Gateway.from_file(path)
    with pytest.raises(ConfigurationError, match="give the path"):
        Gateway.from_file(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ConfigurationError, match=r"bad\.toml: it is not TOML"):
        Gateway.from_file(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"modules": [{}]}, "modules.0.name: this key is required"),
        ({"modules": [{"name": "a"}]}, "modules.0 = 'a': give either"),
        ({"modules": [{"name": 5, "module": "timer"}]}, "modules.0.name = 5: input should"),
        ({"modules": [{"name": "", "module": "timer"}]}, "modules.0.name = ''"),
        ({"modules": [entry("*")]}, "modules.0.name = '*': in links it stands for all"),
        ({"modules": [entry("a"), entry("a")]}, "modules.1.name = 'a': another module"),
        ({"modules": [entry("a", on_fire=1)]}, "modules.0.on_fire: there is no such key"),
        ({"modules": [entry("a", args=5)]}, "modules.0.args = 5"),
        ({"modules": [entry("a", restart="x")]}, "modules.0.restart = 'x'"),
        ({"modules": [entry("a", queue={"limit": 0})]}, "modules.0.queue.limit = 0"),
        ({"modules": [{"name": "a", "module": "nowhere"}]}, "is not a module"),
        ({"modules": [{"name": "a", "module": "no.such:X"}]}, "no.such cannot be imported"),
        ({"modules": [entry("a", "Nobody")]}, "there is no module class Nobody"),
        ({"modules": [entry("a", "made")]}, "there is no module class made"),
        (
            {"modules": [{"name": "a", "loader": {"name": "native"}}]},
            "modules.0.loader.name = 'native': loader type 'native' loads code of another",
        ),
        ({"modules": [{"name": "a", "loader": {"name": "x"}}]}, "there is no loader type 'x'"),
        (
            {"modules": [{"name": "a", "loader": {"entrypoint": {"k": 1}}}]},
            "modules.0.loader.entrypoint.k = 1: there is no such key",
        ),
        (
            {"modules": [{"name": "a", "loader": {"entrypoint": {"module.path": 1}}}]},
            "modules.0.loader.entrypoint.module.path = 1",
        ),
        ({"loaders": [{"type": "java", "name": "j"}]}, "loaders.0.type = 'java'"),
        ({"loaders": [{"type": "python"}]}, "loaders.0.name: this key is required"),
        ({"links": [{"source": "a"}]}, "links.0.sink: this key is required"),
        ({"links": [{"source": "a", "sink": "b"}]}, "links.0.source = 'a': there is no module"),
        ({"links": [{"source": "a", "sink": "b"}]}, "links.0.sink = 'b': there is no module"),
        (
            {"modules": [entry("a")], "links": [{"source": "a", "sink": "*"}]},
            "links.0.sink = '*': only a source",
        ),
        (
            {"modules": [entry("a")], "links": [{"source": "a", "sink": "a"}] * 2},
            "links.1 = 'a -> a': this link exists already",
        ),
        ({"dead_letters": "x"}, "dead_letters = 'x': there is no module"),
        ({"module": []}, "module: there is no such key here; known keys are loaders, modules"),
        (
            {"modules": [{"name": "t", "module": "timer", "args": {"period": 0}}]},
            "modules.0.args.period = 0: input should be greater than 0",
        ),
        (
            {"modules": [{"name": "t", "module": "timer", "args": {"perod": 1}}]},
            "modules.0.args.perod: there is no such key here; known keys are period",
        ),
    ],
)
def test_a_mistake_is_reported_with_file_and_key_and_no_module_is_created(
    tmp_path, shelf, values, line
):
    path = tmp_path / "gw.json"
    path.write_text(json.dumps(values))

    with pytest.raises(ConfigurationError) as caught:
        Gateway.from_file(path)

    assert any(each.startswith(f"{path}: ") and line in each for each in caught.value.lines)
    assert shelf.made == {}


def test_all_mistakes_are_reported_together(tmp_path):
    path = write(tmp_path / "gw.json", entry("*"), entry("a"), entry("a"), links=[("x", "*")])

    with pytest.raises(ConfigurationError) as caught:
        Gateway.from_file(path)

    assert len(caught.value.lines) == 4


MISTAKEN = """
[[modules]]
name = "clock"
module = "timer"
args = { period = 0, x = 1 }
restartt = "no"

[[modules]]
name = "up"
module = "http"
args = { post = "ftp://x" }
store = "s"
[modules.queue]
limit = "many"

[[modules]]
module = "file"

[[modules]]
name = "late"
module = "nothing"
store = "s"

[[links]]
source = "clock"
sink = "upp"

[[links]]
sink = 5

[[links]]
source = "nobody"
sink = "up"
"""


def test_mistakes_of_form_and_of_meaning_are_reported_together_with_their_lines(tmp_path):
    (tmp_path / "gw.toml").write_text(MISTAKEN)

    with pytest.raises(ConfigurationError) as caught:
        read_configuration_file(tmp_path / "gw.toml")

    told = [line.removeprefix(f"{tmp_path}/gw.toml: ") for line in caught.value.lines]
    expected = [
        ("modules.0.restartt: there is no such key here; known keys are name,", "(line 6)"),
        ("modules.1.queue.limit = 'many': input should be a valid integer", "(line 14)"),
        ("modules.2.name: this key is required", ""),
        ("links.1.source: this key is required", ""),
        ("links.1.sink = 5: input should be a valid string", "(line 29)"),
        ("modules.0.args.period = 0: input should be greater", "of module 'clock' (line 5)"),
        ("modules.0.args.x: there is no such key here", "of module 'clock' (line 5)"),
        ("modules.1.args.post = 'ftp://x'", "of module 'up' (line 11)"),
        ("modules.3.store = 's': another module has it", "(line 22)"),
        ("modules.3.module = 'nothing': 'nothing' is not a module", "(line 21)"),
        ("links.0.sink = 'upp': there is no module of that name; did you", "'up'? (line 26)"),
        ("links.2.source = 'nobody': there is no module of that", "clock, late, up (line 32)"),
    ]
    for begin, end in expected:
        assert any(each.startswith(begin) and each.endswith(end) for each in told), (
            begin,
            told,
        )
    assert len(told) == len(expected)


def test_a_module_that_cannot_be_created_undoes_the_whole_creation(tmp_path, node, shelf):
    path = write(tmp_path / "gw.json", entry("a"), entry("b"), entry("c", "Broken"))

    with pytest.raises(ModuleFailed, match="'c' was not created"):
        Gateway.from_file(path, node=node)

    assert shelf.made["a"].calls == shelf.made["b"].calls == ["create", "destroy"]
