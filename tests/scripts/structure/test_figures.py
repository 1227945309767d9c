"""What is counted of the source, on small trees of files."""

from pathlib import PurePosixPath

import pytest

from scripts.structure.circles import circles, import_graph
from scripts.structure.figures import code_lines, function_length, measure
from scripts.structure.source import SourceFile, canonical, select_source, select_tests


def file(path, text=""):
    return SourceFile(PurePosixPath(path), text)


def figure(name, source=(), tests=()):
    return next(figure for figure in measure(source, tests) if figure.name == name)


# --- circles ---


def test_an_import_under_type_checking_closes_a_circle():
    source = [
        file("actors/a.py", "from actors.b import B"),
        file("actors/b.py", "if TYPE_CHECKING:\n    from actors.a import A"),
        file("actors/c.py", "import actors.a"),
    ]
    assert circles(import_graph(source)) == [["actors/a.py", "actors/b.py"]]
    assert figure("circles", source).value == 1
    assert figure("files_in_circles", source).value == 2


def test_an_import_within_a_function_closes_a_circle():
    source = [
        file("actors/a.py", "import actors.b"),
        file("actors/b.py", "def f():\n    from actors import a"),
    ]
    assert circles(import_graph(source)) == [["actors/a.py", "actors/b.py"]]


def test_an_import_by_a_string_closes_a_circle():
    source = [
        file("callboard/store/a.py", "from callboard.zeek.b import B"),
        file("callboard/zeek/b.py", "importlib.import_module(f'callboard.store.{name}')"),
    ]
    assert circles(import_graph(source)) == [["callboard/store/a.py", "callboard/zeek/b.py"]]
    assert figure("string_imports", source).value == 1


def test_what_composition_names_closes_a_circle():
    source = [
        file("callboard/composition.py", "slots.A.fill({'b': 'callboard.zeek.b:B'})"),
        file("callboard/zeek/b.py", "from callboard import composition"),
    ]
    names = ["callboard/composition.py", "callboard/zeek/b.py"]
    assert circles(import_graph(source)) == [names]
    assert figure("string_imports", source).value == 0


def test_names_of_the_core_are_to_come_from_the_kernel():
    source = [
        file("callboard/kernel/reply.py", "from callboard.actors.future import Future"),
        file("callboard/store/a.py", "from callboard.kernel.reply import Future, due_of"),
        file("callboard/zeek/b.py", "from callboard.actors.future import Future, waiting"),
        file("callboard/node.py", "from callboard.proxies import node"),
    ]
    assert figure("names_past_kernel", source).value == 2
    assert figure("modules_past_kernel", source).value == 1
    assert figure("kernel_names", source).value == 1
    assert figure("users_names", source).value == 1


def test_both_names_of_a_package_mean_its_one_file():
    source = [
        file("actors/a.py", "from callboard.actors.b import B"),
        file("actors/b.py", "from actors.a import A"),
    ]
    assert circles(import_graph(source)) == [["actors/a.py", "actors/b.py"]]
    assert canonical("callboard.actors") == "actors"
    assert canonical("callboard.actors_too") == "callboard.actors_too"


def test_what_a_package_exports_is_imported_from_its_init():
    source = [
        file("callboard/__init__.py", "from callboard.a import A"),
        file("callboard/a.py", "from callboard import B"),
    ]
    assert circles(import_graph(source)) == [["callboard/__init__.py", "callboard/a.py"]]


def test_circles_that_share_a_file_are_one():
    graph = {"a": {"b", "c"}, "b": {"a"}, "c": {"a"}, "d": {"a", "e"}, "e": {"f"}, "f": {"e"}}
    assert circles(graph) == [["a", "b", "c"], ["e", "f"]]


def test_a_long_circle_needs_no_recursion():
    graph = {str(n): {str((n + 1) % 5_000)} for n in range(5_000)}
    assert len(circles(graph)[0]) == 5_000


# --- size ---


def test_code_is_what_is_not_blank_comment_or_docstring():
    text = """
'''Head.'''

# why
x = '''not
a docstring'''

def f():
    '''Do.

    More.
    '''
    return x
"""
    assert code_lines(file("actors/a.py", text)) == 4


def test_the_length_of_a_function_is_without_its_docstring():
    text = "@cache\ndef f():\n    '''Do.\n\n    More.\n    '''\n    return 1\n"
    (function,) = file("actors/a.py", text).functions
    assert function_length(function) == 2


def test_an_init_counts_in_its_folder_but_is_no_source_file():
    source = [file("basp/__init__.py"), file("basp/a.py"), file("basp/deep/b.py")]
    assert figure("files", source).value == 2
    assert figure("largest_folder", source).value == 2


# --- docstrings and names ---


def test_dunders_overloads_and_nested_functions_need_no_docstring():
    text = """
class A:
    def __eq__(self, other): ...
    @overload
    def f(self): ...
    @typing.overload
    def f(self): ...
    def g(self):
        '''Do.'''
        def nested(): ...
    def h(self): ...
"""
    found = figure("documented", [file("basp/a.py", text)])
    assert found.value == 0.5
    assert found.found == ["basp/a.py:11 h"]


def test_a_class_name_in_two_files_is_one_too_many():
    exported = "class Exported: ...\nclass Given: ...\n"
    source = [
        file("callboard/__init__.py", "from a import Given as Given\n__all__ = ['Exported']"),
        file("callboard/a.py", f"class Twice: ...\n{exported}class _Private: ..."),
        file("callboard/b.py", f"class Twice: ...\n{exported}class _Private: ..."),
    ]
    assert figure("double_names", source).found == ["Twice: callboard/a.py callboard/b.py"]


def test_a_module_imported_with_a_star_exports_its_classes():
    source = [
        file("callboard/errors.py", "from callboard.actors.errors import *"),
        file("actors/errors.py", "class Twice: ..."),
        file("basp/errors.py", "class Twice: ..."),
    ]
    assert figure("double_names", source).value == 0


def test_rooms_above_actors_are_not_to_reach_into_the_runtime():
    text = "self._cell.runtime.spawn(a)\nruntime.names\n"
    source = [file("actors/a.py", text), file("proxies/a.py", text)]
    assert figure("runtime_reaches", source).value == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("other._x", 1),
        ("self.other._x", 1),
        ("from actors.owner import _x", 1),
        ("self._x, cls._x, super()._x", 0),
        ("other.__x__, other._replace(), other._unknown", 0),
        ("import os\nos._x", 0),
        ("class A:\n    __slots__ = ('_x',)\n    def __eq__(self, o): return o._x", 0),
    ],
)
def test_a_private_name_is_used_in_its_own_module(text, count):
    owner = file("actors/owner.py", "class Owner:\n    def f(self):\n        self._x = 1")
    assert figure("private_reaches", [owner, file("actors/user.py", text)]).value == count


# --- tests ---


def test_sleeps_count_that_wait_for_time():
    call = "sleep" + "("  # not one word, so that this file has none
    text = f"{call}0)\ntime.{call}0.1)\nawait asyncio.{call}x)\nself.{call}1)\nactor.{call}1)\n"
    assert figure("sleeps", tests=[file("tests/a.py", text)]).value == 2


def test_a_name_that_is_gone_is_found_where_a_test_imports_it():
    source = [
        file(
            "callboard/a.py",
            "class A: ...\nif B:\n    from callboard.c import d as D\nE: int = 1",
        ),
        file("callboard/b.py", "def __getattr__(name): ..."),
        file("actors/a.py", ""),
        file("actors/__init__.py", ""),
    ]
    held = "from callboard.a import A, D, E\nfrom callboard.b import X\nfrom actors import a"
    gone = "def f():\n    from callboard.a import B, d\n    from callboard.actors.a import c"
    assert figure("missing_names", source, [file("tests/a.py", held)]).value == 0
    assert figure("missing_names", source, [file("tests/a.py", gone)]).value == 3


def test_templates_and_faults_are_left_out():
    files = [
        file("callboard/cli/project/a.py"),
        file("callboard/a.py"),
        file("tests/faults/a.py"),
        file("tests/a.py"),
    ]
    assert [str(each.path) for each in select_source(files)] == ["callboard/a.py"]
    assert [str(each.path) for each in select_tests(files)] == ["tests/a.py"]


# --- types ---


def test_types_that_say_nothing_are_counted_in_three_packages():
    text = """
from typing import Any, cast

def f(a: Any, b: "list[object]", *c: object) -> "Any | None":
    d: dict[str, Any] = cast(dict, object())
    return d  # type: ignore[return-value]
"""
    source = [file("actors/a.py", text), file("callboard/mqtt/b.py", text)]
    assert figure("loose_types", source).value == 7
    assert figure("loose_types", source).found == ["7 actors/a.py"]
    assert figure("loose_types", [file("callboard/entity/c.py", "x: Any")]).value == 1
