"""Bugs that are planted in copies of the source: what they change, and where."""

import ast

import pytest

from scripts.mutants import (
    ROOT,
    Mutant,
    change,
    draw,
    expressions,
    folders_of,
    has_slip,
    packages,
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a == b", "a != b"),
        ("a < b", "a >= b"),
        ("a in b", "a not in b"),
        ("a and b", "a or b"),
        ("not a", "a"),
        ("a + 1", "a - 1"),
    ],
)
def test_a_slip_turns_one_expression_into_another(before, after):
    node = ast.parse(before, mode="eval").body
    assert has_slip(node)

    changed = change(node)

    assert ast.unparse(changed) == after


@pytest.mark.parametrize("text", ["f(a)", "a * b", "'x' + a", "a < b < c"])
def test_what_has_no_slip_of_that_kind_is_left_alone(text):
    assert not has_slip(ast.parse(text, mode="eval").body)


def test_only_the_expression_is_changed_in_the_source():
    source = "def f(a, b):\n    # é\n    return g(a < b, a)  # why\n"
    (node,) = [node for node in expressions(ast.parse(source)) if has_slip(node)]

    mutant = Mutant("room", ROOT, node, change(node))

    assert mutant.apply(source) == source.replace("a < b", "(a >= b)")


def test_what_only_raises_asserts_or_describes_has_no_place_for_a_bug():
    source = """
def __repr__(self):
    return self.a + 1
def f(a):
    assert a > 1
    raise ValueError(a + 1)
"""
    assert [node for node in expressions(ast.parse(source)) if has_slip(node)] == []


@pytest.mark.slow
def test_each_package_has_a_bug_to_plant_and_tests_that_may_find_it():
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout: what git tracks is not known")
    for package, paths in packages().items():
        mutant = draw(package, paths, seed=1)

        assert mutant.apply((ROOT / mutant.path).read_text())
        assert all((ROOT / folder).exists() for folder in folders_of(package))
