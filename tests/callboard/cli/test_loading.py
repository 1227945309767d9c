import sys

import pytest

from callboard.cli.cli_error import CliError
from callboard.cli.loading import load_app, set_up, spawnable_classes


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def write_app(text, name="some_app.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    yield write_app
    for name in set(sys.modules) - known:
        del sys.modules[name]


ACTORS = """
from callboard import Actor, Entity, Supervisor

class Counter(Actor): pass
class Cart(Entity): pass
class _Hidden(Actor): pass
class Other: pass
"""


def test_public_actors_of_the_file_are_offered_under_their_names(write):
    module = load_app(write(ACTORS))

    assert spawnable_classes(module) == {"Counter": module.Counter}


def test_a_mapping_in_the_file_replaces_them(write):
    module = load_app(write(ACTORS + "spawnable = {'count': _Hidden}"))

    assert spawnable_classes(module) == {"count": module._Hidden}


@pytest.mark.parametrize("wrong", ["[Counter]", "{'a': 1}", "{1: Counter}"])
def test_another_kind_of_offer_is_refused(write, wrong):
    module = load_app(write(ACTORS + f"spawnable = {wrong}"))

    with pytest.raises(CliError, match="does not map names"):
        spawnable_classes(module)


def test_files_next_to_it_can_be_imported(write):
    write("VALUE = 7", "neighbor_of_app.py")

    assert load_app(write("from neighbor_of_app import VALUE")).VALUE == 7


def test_a_file_does_not_replace_a_module_that_is_loaded(write):
    load_app(write("X = 1", "json.py"))

    assert hasattr(sys.modules["json"], "dumps")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = (", "some_app.py:1: '(' was never closed; correct that line"),
        ("\nimport no_such_module_at_all", "at line 2: ModuleNotFoundError: No module named"),
        ("raise ValueError", "at line 1: ValueError;"),
    ],
)
def test_a_mistake_in_the_file_is_reported_in_one_line(write, text, line):
    with pytest.raises(CliError) as failure:
        load_app(write(text))

    assert line in str(failure.value)
    assert failure.value.code == 1


def test_a_file_that_is_not_python_is_a_usage_error(write):
    with pytest.raises(CliError, match="not a Python file") as failure:
        load_app(write("", "app.txt"))

    assert failure.value.code == 2


def test_setup_gets_the_node_and_is_optional(write):
    path = write("seen = []\ndef setup(node): seen.append(node)")
    module = load_app(path)
    set_up(module, "node", path)

    assert module.seen == ["node"]
    set_up(load_app(write("", "empty_app.py")), "node", path)


def test_a_failing_setup_is_reported_with_its_line(write):
    path = write("def setup(node):\n    node.nothing")

    with pytest.raises(CliError, match=r"setup\(node\) failed at line 2: AttributeError"):
        set_up(load_app(path), "node", path)
