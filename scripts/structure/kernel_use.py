"""Use of the core by packages: the names that they import, and the attributes of these.

`python -m scripts.structure.kernel_use` counts for the packages above the core:

- names that they import from `actors`, `basp` and `proxies` past the kernel;
- names that they import from the kernel, and names of users among them;
- attributes of classes and modules of the core or the kernel, without public attributes of
  users' classes, such as `Future.result`. The types are mypy's, so this takes as long as mypy;
- fields of frozen records, such as the answers of an inspector, apart: they are the documented
  form of a message, and have no behavior.
"""

import argparse
import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import GetSetDescriptorType
from typing import Final

from mypy import build, nodes, types
from mypy.modulefinder import BuildSource
from mypy.options import Options

from scripts.structure.figure import Figure
from scripts.structure.kernel_imports import (
    import_figures,
    is_core,
    is_kernel,
    is_users,
    lines_of,
    packages,
)
from scripts.structure.source import SourceFile, select_source, tracked_files

ROOT: Final = Path(__file__).resolve().parents[2]


def attribute_figures(source: Iterable[SourceFile]) -> Iterator[Figure]:
    """Yield the numbers of attributes of the core and the kernel that packages use."""
    all_used, fields = _used_attributes(list(source))
    used = {
        name: files
        for name, files in all_used.items()
        if not _is_users_attribute(name) and name not in fields
    }
    yield Figure(
        "kernel_attributes",
        len(used),
        "attributes of the core's and the kernel's classes that packages use",
        found=lines_of(used),
    )
    yield Figure(
        "record_fields",
        len(fields),
        "fields of frozen records of the core that packages use",
        found=lines_of({name: all_used[name] for name in fields}),
    )
    classes = defaultdict[str, set[str]](set)
    for name in used:
        owner, _, attribute = name.rpartition(".")
        classes[owner].add(attribute)
    most = sorted(classes.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    yield Figure(
        "most_attributes",
        len(most[0][1]) if most else 0,
        "attributes of one class of the core or the kernel that packages use",
        found=[f"{len(names)} {owner}: {' '.join(sorted(names))}" for owner, names in most],
    )


def _is_users_attribute(name: str) -> bool:
    """Return whether an attribute is public and belongs to a class or module of users."""
    owner, _, attribute = name.rpartition(".")
    is_name = is_kernel(owner) and is_users(name)
    return is_name or (is_users(owner) and not attribute.startswith("_"))


# -------------------------------------------------------------------------------- attributes


def _used_attributes(source: list[SourceFile]) -> tuple[dict[str, set[str]], set[str]]:
    """Return the used attributes with the files that use them, and the fields among them.

    Attributes are named `module.Class.attribute`. Fields are those of frozen records, without
    the fields of users' records.
    """
    options = Options()
    options.python_version = (3, 11)
    options.export_types = True
    options.preserve_asts = True
    options.incremental = False
    options.follow_imports = "silent"
    options.ignore_missing_imports = True
    options.check_untyped_defs = True
    files = packages(source)
    built = build.build(
        [BuildSource(str(ROOT / file.path), file.module) for file in files], options
    )
    used: dict[str, set[str]] = defaultdict(set)
    fields: set[str] = set()
    for file in files:
        tree = built.graph[file.module].tree
        for expression in _members(tree):
            for name, is_field in _core_attributes(expression, built.types):
                used[name].add(str(file.path))
                if is_field and not _is_users_attribute(name):
                    fields.add(name)
    return used, fields


#: Attributes of mypy's nodes that lead to other files, or to nodes of this file again.
_ELSEWHERE: Final = frozenset({"analyzed", "info", "names", "node", "type"})


def _members(tree: object) -> Iterator[nodes.MemberExpr]:
    """Yield each `a.b` of a file. Mypy's visitors are compiled and cannot be subclassed."""
    seen: set[int] = set()
    waiting: list[object] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list | tuple):
            waiting += node
        elif isinstance(node, nodes.Node) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, nodes.MemberExpr):
                yield node
            for name in _parts(type(node)):
                with contextlib.suppress(AssertionError, AttributeError):  # not set, or missing
                    waiting.append(getattr(node, name))


def _parts(kind: type) -> list[str]:
    """Return the attributes of a class of mypy's nodes that hold other nodes."""
    parts = _PARTS.get(kind)
    if parts is None:
        parts = _PARTS[kind] = [
            name
            for name in dir(kind)
            if isinstance(getattr(kind, name, None), GetSetDescriptorType)
            and name not in _ELSEWHERE
        ]
    return parts


_PARTS: Final[dict[type, list[str]]] = {}


def _core_attributes(
    used: nodes.MemberExpr, typed: dict[nodes.Expression, types.Type]
) -> Iterator[tuple[str, bool]]:
    """Yield the attributes of the core that an expression may be, and whether it is a field."""
    if isinstance(used.expr, nodes.RefExpr) and isinstance(used.expr.node, nodes.MypyFile):
        module = used.expr.node.fullname
        if is_core(module) or is_kernel(module):
            yield f"{module}.{used.name}", False
        return
    for info in _classes_of(typed.get(used.expr)):
        owner = _owner(info, used.name)
        if owner is not None:
            yield f"{owner.fullname}.{used.name}", _is_field(owner, used.name)


def _is_field(info: nodes.TypeInfo, attribute: str) -> bool:
    """Return whether an attribute is a field of a frozen record."""
    record = info.metadata.get("dataclass")
    if record is None or not record.get("frozen"):
        return False
    return attribute in {field["name"] for field in record["attributes"]}


def _owner(info: nodes.TypeInfo, attribute: str) -> nodes.TypeInfo | None:
    """Return the class of the core that defines an attribute of a class; None for others."""
    for base in info.mro:
        if attribute in base.names:
            is_ours = is_core(base.module_name) or is_kernel(base.module_name)
            return base if is_ours else None
    return None


def _classes_of(given: types.Type | None) -> Iterator[nodes.TypeInfo]:
    """Yield the classes that a value of a type may have."""
    if given is None:
        return
    match types.get_proper_type(given):
        case types.Instance(type=info):
            yield info
        case types.UnionType(items=items):
            for item in items:
                yield from _classes_of(item)
        case types.TypeType(item=item):
            yield from _classes_of(item)
        case types.TypeVarType(upper_bound=bound):
            yield from _classes_of(bound)
        case types.TupleType(partial_fallback=fallback):
            yield from _classes_of(fallback)
        case types.CallableType() as callable_ if callable_.is_type_obj():
            yield callable_.type_object()
        case _:
            pass


def main() -> int:
    """Print the figures, and on request the counted names."""
    parser = argparse.ArgumentParser(prog="python -m scripts.structure.kernel_use")
    parser.add_argument(
        "--find", metavar="FIGURE", help="print the names that one figure counts"
    )
    parser.add_argument("--imports", action="store_true", help="leave the attributes out")
    options = parser.parse_args()

    source = select_source(tracked_files(ROOT))
    figures = list(import_figures(source))
    if not options.imports:
        figures += attribute_figures(source)
    for figure in figures:
        print(f"{figure.name} = {figure.value:g}  # {figure.meaning}")
        if options.find == figure.name:
            print("\n".join(figure.found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
