"""Circles of imports: files each of which imports, directly or not, all others."""

from collections.abc import Iterable, Mapping

from scripts.structure.source import SourceFile, canonical

Graph = Mapping[str, Iterable[str]]


def import_graph(files: Iterable[SourceFile]) -> dict[str, set[str]]:
    """Return, for the path of each file, the paths of the files that it imports."""
    paths = {file.module: str(file.path) for file in files}
    graph: dict[str, set[str]] = {}
    for file in files:
        targets: set[str | None] = set()
        for name in map(canonical, file.imported_names()):
            if name.endswith("."):
                targets |= {path for module, path in paths.items() if module.startswith(name)}
            else:
                targets.add(_path_of(name, paths))
        graph[str(file.path)] = {path for path in targets if path and path != str(file.path)}
    return graph


def _path_of(name: str, paths: Mapping[str, str]) -> str | None:
    """Return the file that defines a dotted name: a module, or what stands in one."""
    while name:
        if name in paths:
            return paths[name]
        name = name.rpartition(".")[0]
    return None


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of two nodes and more, the largest first.

    Kosaraju's algorithm: in the graph with all edges turned round, what is reached from the
    node that a search of the graph leaves last is one component; and so on with what is left.
    """
    turned: dict[str, set[str]] = {}
    for node, targets in graph.items():
        for target in targets:
            turned.setdefault(target, set()).add(node)
    seen: set[str] = set()
    order = [left for node in graph for left in _leave_order(graph, node, seen)]
    seen = set()
    components = [_leave_order(turned, node, seen) for node in reversed(order)]
    found = [sorted(component) for component in components if len(component) > 1]
    return sorted(found, key=lambda component: (-len(component), component))


def _leave_order(graph: Graph, start: str, seen: set[str]) -> list[str]:
    """Return the nodes that a search from a node reaches first, in the order it leaves them."""
    if start in seen:
        return []
    seen.add(start)
    left: list[str] = []
    path = [(start, iter(graph.get(start, ())))]
    while path:
        node, targets = path[-1]
        target = next((target for target in targets if target not in seen), None)
        if target is None:
            left.append(node)
            path.pop()
        else:
            seen.add(target)
            path.append((target, iter(graph.get(target, ()))))
    return left
