"""What `callboard` exports is complete: every error and every event of the rooms below."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import callboard
import callboard.actors.errors
import callboard.actors.events
import callboard.proxies.errors
import callboard.proxies.events
from callboard import errors, events


def classes_of(module):
    return {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }


@pytest.mark.parametrize("module", [callboard.actors.errors, callboard.proxies.errors])
def test_every_error_is_one_that_users_can_catch(module):
    for name in classes_of(module):
        assert issubclass(getattr(errors, name), callboard.CallboardError)
        assert name in errors.__all__


@pytest.mark.parametrize("module", [callboard.actors.events, callboard.proxies.events])
def test_every_event_can_be_imported(module):
    assert classes_of(module) <= set(events.__all__)


@pytest.mark.parametrize("module", [callboard, errors, events])
def test_what_is_listed_is_there(module):
    assert all(hasattr(module, name) for name in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)


def test_names_are_imported_at_run_time_from_where_checkers_see_them():
    tree = ast.parse(Path(callboard.__file__).read_text())
    seen_by_checkers = {
        name.name: found.module
        for found in ast.walk(tree)
        if isinstance(found, ast.ImportFrom)
        for name in found.names
        if name.name in callboard.__all__
    }

    modules = dict.fromkeys(callboard._MODULES, "callboard")

    assert callboard._HOMES | modules == seen_by_checkers
    assert sorted(seen_by_checkers) == sorted(callboard.__all__)


def test_public_names_are_listed_before_they_were_used():
    program = "import callboard; print(*dir(callboard)); callboard.errors.LinkFull"

    printed = run(program)

    assert set(callboard.__all__) <= set(printed.split())


def test_rooms_are_reached_by_name():
    printed = run("import callboard; print(callboard.broker.Endpoint.__name__)")

    assert printed == "Endpoint\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'callboard' has no attribute 'Nod'"):
        callboard.Nod  # noqa: B018


def test_who_reads_a_log_loads_neither_actors_nor_asyncio():
    program = "import sys, callboard.commitlog; print(*sys.modules)"

    loaded = set(run(program).split())

    assert "callboard.commitlog" in loaded
    assert not loaded & {"asyncio", "pyarrow", "ssl", "thespian"}
    assert not loaded & {"callboard.actors", "callboard.basp", "callboard.proxies"}


def run(program):
    """Return what a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    ).stdout
