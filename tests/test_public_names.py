"""Public names stay: a program of the last release imports all of them from this tree."""

import importlib
from pathlib import Path

import callboard
from tests.public_names import INTERNAL, LIST, PACKAGES, public_names

LISTED = LIST.read_text().split()


def test_no_public_name_disappears() -> None:
    missing = sorted(set(LISTED) - set(public_names()))

    assert not missing, f"keep an alias with a DeprecationWarning for one release: {missing}"


def test_each_new_public_name_is_in_the_list() -> None:
    new = sorted(set(public_names()) - set(LISTED))

    assert not new, f"run `python -m tests.public_names` if these are meant to be public: {new}"


def test_each_public_name_can_be_imported() -> None:
    for name in LISTED:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_each_package_with_a_list_of_names_is_public_or_internal() -> None:
    folder = Path(callboard.__file__).parent
    packages = {
        f"callboard.{path.parent.name}"
        for path in folder.glob("*/__init__.py")
        if "__all__" in path.read_text(encoding="utf-8")
    }

    assert packages == {*PACKAGES, *INTERNAL} - {"callboard"}
