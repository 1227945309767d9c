"""Plant one bug in each package, and look whether the tests of `make test` find it.

`python -m scripts.mutants` draws a place in each package at random and changes it as a slip of
the keyboard would: a comparison is turned round, `and` becomes `or`, a `not` is lost, `+`
becomes `-`. Each change is made in a copy of the tree in build/mutants, so nothing happens to
the checkout, and the quick tests of that package are run there until the first fails.

    --seed 7            draw other places
    --package basp      only these packages; may be repeated
    --list              print the changes, and run nothing
    --whole             where the tests of the package find nothing, run all quick tests
"""

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build" / "mutants"
#: Folders at the top of the tree; every other package stands in callboard/.
TOP = ("actors", "basp", "proxies")
#: The name of what stands in callboard/ itself.
MODULES = "modules"
#: Packages that only re-export names.
ALIASES = ("kernel", "endpoint")
#: Seconds until a run is taken for one that hangs, which is a bug that is found.
LIMIT = 900

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
#: Functions whose text is not part of any promise.
PASSED_OVER = ("__repr__", "__str__", "__del__")


@dataclass(frozen=True)
class Mutant:
    """One changed expression."""

    package: str
    path: Path
    node: ast.expr
    changed: ast.expr

    def __str__(self) -> str:
        place = f"{self.path}:{self.node.lineno}"
        return f"{place}: {ast.unparse(self.node)}  ->  {ast.unparse(self.changed)}"

    def apply(self, source: str) -> str:
        """Return the source with the expression changed."""
        lines = source.encode().splitlines(keepends=True)
        first, last = self.node.lineno - 1, (self.node.end_lineno or 0) - 1
        head = lines[first][: self.node.col_offset]
        tail = lines[last][self.node.end_col_offset :]
        lines[first : last + 1] = [head + f"({ast.unparse(self.changed)})".encode() + tail]
        return b"".join(lines).decode()


def has_slip(node: ast.expr) -> bool:
    """Return whether the expression is of a kind that `change` knows."""
    match node:
        case ast.Compare(ops=[_]) | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return not _is_text(node)
    return False


def change(node: ast.expr) -> ast.expr:
    """Return the expression, which has a slip, with the slip in it."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]):
            changed.ops = [COMPARISONS[type(operator)]()]
        case ast.BoolOp():
            changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not()):
            return changed.operand
        case ast.BinOp():
            changed.op = OPERATORS[type(changed.op)]()
    return changed


def _is_text(node: ast.BinOp) -> bool:
    """Return whether an operand is a literal of text, which `-` would only crash on."""
    return any(
        isinstance(side, ast.JoinedStr | ast.List)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in functions, except in what only raises, asserts or describes."""
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.name not in PASSED_OVER:
            for statement in node.body:
                yield from _inside(statement)


def _inside(root: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a statement in their order."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Raise | ast.Assert | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.expr):
            yield node
        nodes += reversed(list(ast.iter_child_nodes(node)))


def packages() -> dict[str, list[Path]]:
    """Return the files of each package, from what git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", *TOP, "callboard"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    found: dict[str, list[Path]] = {}
    for path in map(Path, listed.split()):
        if path.suffix == ".py":
            inner = path.parts[1] if len(path.parts) > 2 else MODULES
            name = path.parts[0] if path.parts[0] in TOP else inner
            if name not in ALIASES:
                found.setdefault(name, []).append(path)
    return dict(sorted(found.items()))


def draw(package: str, paths: list[Path], seed: int) -> Mutant:
    """Draw one mutant of a package."""
    places = [
        (path, node)
        for path in paths
        for node in expressions(ast.parse((ROOT / path).read_text()))
        if has_slip(node)
    ]
    path, node = random.Random(f"{package} {seed}").choice(places)
    return Mutant(package, path, node, change(node))


def folders_of(package: str) -> list[str]:
    """Return the folders or files with the tests of a package."""
    if package == MODULES:
        return [
            *map(str, sorted(Path("tests/callboard").glob("test_*.py"))),
            "tests/test_api.py",
        ]
    if package == "tls":  # certificates are tested on the links that they protect
        return ["tests/proxies/link"]
    return [f"tests/{package}" if package in TOP else f"tests/callboard/{package}"]


def copy_tree() -> None:
    """Copy what git tracks to build/mutants."""
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    tracked = subprocess.Popen(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE)
    pack = ["tar", "--create", "--null", "--files-from=-", "--ignore-failed-read"]
    packed = subprocess.Popen(pack, cwd=ROOT, stdin=tracked.stdout, stdout=subprocess.PIPE)
    subprocess.run(["tar", "--extract"], cwd=TREE, stdin=packed.stdout, check=True)


def first_failure(tests: list[str], jobs: str) -> str:
    """Run quick tests in the copy; return the first that fails, or "" where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", jobs, "--dist", "loadfile"]
    command += ["-m", "not faults and (quick or not slow)", *tests]
    # The copy stands before the checkout, for the commands that tests start as well.
    environment = os.environ | {"PYTHONPATH": str(TREE)}
    # Compiled files serve all runs: a file with a planted bug differs in size.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        run = subprocess.run(
            command, cwd=TREE, env=environment, timeout=LIMIT, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return "a run that did not end"
    failure = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
    if failure:
        return failure[1]
    return "" if run.returncode in (0, 1, 5) else "a run that could not begin"


def find(mutant: Mutant, jobs: str, *, whole: bool) -> str:
    """Plant a bug, and return the test that finds it, or "" where none does."""
    path = TREE / mutant.path
    source = path.read_text()
    path.write_text(mutant.apply(source))
    try:
        failure = first_failure(folders_of(mutant.package), jobs)
        if not failure and whole:
            failure = first_failure([], jobs)
    finally:
        path.write_text(source)
    # A test that fails without the bug too has found nothing.
    is_test = failure.startswith("tests/")
    return "" if is_test and first_failure([failure], "0") else failure


def main() -> int:
    """Plant, run and report; return 1 if more than two bugs are not found."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--package", action="append", default=[])
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()

    wanted = {
        name: paths
        for name, paths in packages().items()
        if not options.package or name in options.package
    }
    mutants = [draw(name, paths, options.seed) for name, paths in wanted.items()]
    if options.list:
        print(*(f"{mutant.package:14} {mutant}" for mutant in mutants), sep="\n")
        return 0
    copy_tree()
    missed = 0
    for mutant in mutants:
        started = time.monotonic()
        failure = find(mutant, options.jobs, whole=options.whole)
        missed += not failure
        seconds = time.monotonic() - started
        word = f"found by {failure}" if failure else "NOT FOUND"
        print(f"{mutant.package:14} {seconds:5.0f} s  {mutant}\n{'':24}{word}", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} bugs found")
    return int(missed > 2)


if __name__ == "__main__":
    sys.exit(main())
