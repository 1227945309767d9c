"""The tables of `docs/locks.md`, made from the sources.

`python -m scripts.locks_page` writes them. Rank, name, owner, file and kind come from the code;
what a lock guards stands on the page and stays there. A new lock gets an empty text, which a
test refuses.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/locks.md"
PACKAGES: Final = ("actors", "basp", "callboard", "proxies")

#: Links to packages that stand beside callboard.
_LINKED: Final = ("callboard/actors/", "callboard/basp/", "callboard/proxies/")

#: The factory, and the plugin that replaces it.
_FACTORIES: Final = ("callboard/locks.py", "callboard/checked_locks.py")

_FACTORY_KINDS: Final = {
    "lock": "",
    "condition": "condition",
    "collecting_lock": "collecting",
}
_OPTION_KINDS: Final = {"reentrant": "reentrant", "runs_users": "runs user code"}

#: Names of `threading` and `_thread` that make an object with which threads wait.
_MAKERS: Final = {
    "allocate_lock",
    "Barrier",
    "BoundedSemaphore",
    "Condition",
    "Event",
    "Lock",
    "RLock",
    "Semaphore",
}

_LOCK_HEAD: Final = "| rank | lock | guards | owner | file | kind |"
_SIGNAL_HEAD: Final = "| signal | what a thread waits for | file | kind |"
#: A text in every file that creates a lock; skips parsing the others, which takes longest.
_MENTION: Final = re.compile(
    r"\blocks\.|\bimport (threading|_thread)|from (threading|_thread) "
)
_TABLE: Final = "{}\n(?:\\|.*\n)+"


class FactoryLock(NamedTuple):
    """A lock of the factory."""

    rank: int
    name: str
    owner: str
    file: str
    kind: str


class Signal(NamedTuple):
    """An object of `threading` that is made without the factory."""

    file: str
    owner: str
    kind: str


def _targets(tree: ast.Module) -> dict[int, ast.expr]:
    """Return the variable or attribute that gets the result of each call, by the call's id."""
    targets = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        for name, value in pairs:
            targets.update({id(inner): name for inner in ast.walk(value)})
    return targets


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Yield each call of a file, and the name of what gets its result."""
    targets = _targets(tree)
    pending: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ())]
    while pending:
        node, scope = pending.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            scope = (*scope, node.name)
        if isinstance(node, ast.Call):
            yield node, _owner(scope, targets.get(id(node)))
        pending += [(child, scope) for child in ast.iter_child_nodes(node)]


def _owner(scope: tuple[str, ...], target: ast.expr | None) -> str:
    """Return the name of a variable with its class or function."""
    if isinstance(target, ast.Attribute):  # of the class, in any of its methods
        return ".".join([*scope[:-1], target.attr])
    names = [target.id] if isinstance(target, ast.Name) else []
    return ".".join([*scope, *names])


def _maker(call: ast.Call, imported: set[str]) -> str:
    """Return what an expression makes without the factory, or an empty text."""
    for value in (call.func, *(keyword.value for keyword in call.keywords)):
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            is_there = value.value.id in ("threading", "_thread")
            if is_there and value.attr in _MAKERS:
                return value.attr
        if isinstance(value, ast.Name) and value.id in imported:
            return value.id
    return ""


def signals_in(tree: ast.Module, file: str) -> list[Signal]:
    """Return the locks, events and semaphores that a file makes without the factory."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "_thread")
        for alias in node.names
        if alias.name in _MAKERS
    }
    return [
        Signal(file, owner, kind)
        for call, owner in _calls(tree)
        if (kind := _maker(call, imported))
    ]


def locks_in(tree: ast.Module, file: str) -> list[FactoryLock]:
    """Return the locks that a file makes by the factory."""
    rows = []
    for call, owner in _calls(tree):
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "locks"
            and function.attr in _FACTORY_KINDS
        ):
            name, rank = (ast.literal_eval(argument) for argument in call.args)
            kinds = [_FACTORY_KINDS[function.attr]]
            kinds += [
                _OPTION_KINDS[keyword.arg or ""]
                for keyword in call.keywords
                if ast.literal_eval(keyword.value)
            ]
            kind = ", ".join(filter(None, kinds))
            rows.append(FactoryLock(rank, name, owner, file, kind))
    return rows


def sources() -> Iterator[tuple[ast.Module, str]]:
    """Yield each file that may make a lock, with its path in the package."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            if file.startswith(_LINKED) or file in _FACTORIES:
                continue
            text = path.read_text(encoding="utf-8")
            if _MENTION.search(text):
                prefix = "" if package == "callboard" else "callboard/"
                yield ast.parse(text), prefix + file


@functools.cache
def in_code() -> tuple[list[FactoryLock], list[Signal]]:
    """Return all locks of the factory in their order, and all signals."""
    made: set[FactoryLock] = set()
    signals: set[Signal] = set()
    for tree, file in sources():
        made.update(locks_in(tree, file))
        signals.update(signals_in(tree, file))
    return sorted(made), sorted(signals)


def texts(page: str) -> dict[str, str]:
    """Return the second column of each row of a page by its first names."""
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 6 and cells[0].isdigit():
            rows[cells[1]] = cells[2]
        elif len(cells) == 4 and cells[0].startswith("`"):
            rows[f"{cells[2]} {cells[0]}"] = cells[1]
    return rows


def tables(page: str) -> tuple[str, str]:
    """Return both tables; the column of guarded data is taken from a page."""
    known = texts(page)
    made, signals = in_code()
    rows = [_LOCK_HEAD, "|---|---|---|---|---|---|"]
    rows += [
        f"| {lock.rank} | {lock.name} | {known.get(lock.name, '')} "
        f"| `{lock.owner}` | `{lock.file}` | {lock.kind} |"
        for lock in made
    ]
    others = [_SIGNAL_HEAD, "|---|---|---|---|"]
    for signal in signals:
        text = known.get(f"`{signal.file}` `{signal.owner}`", "")
        others.append(f"| `{signal.owner}` | {text} | `{signal.file}` | {signal.kind} |")
    return "\n".join(rows) + "\n", "\n".join(others) + "\n"


def written(page: str) -> str:
    """Return a page with the tables of today's code."""
    for head, table in zip((_LOCK_HEAD, _SIGNAL_HEAD), tables(page), strict=True):
        [old] = re.findall(_TABLE.format(re.escape(head)), page)
        page = page.replace(old, table)
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
