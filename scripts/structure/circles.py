"""Circles of imports: groups of files that import each other, directly or not."""

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
    """Return the file that defines a dotted name: a module, or a name in a module."""
    while name:
        if name in paths:
            return paths[name]
        name = name.rpartition(".")[0]
    return None


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components with at least two nodes, the largest first.

    Kosaraju's algorithm: a depth-first search of the graph gives the postorder of its nodes.
    In the graph with reversed edges, searches from the nodes in reverse postorder reach one
    component each.
    """
    reversed_graph: dict[str, set[str]] = {}
    for node, targets in graph.items():
        for target in targets:
            reversed_graph.setdefault(target, set()).add(node)
    visited: set[str] = set()
    order = [finished for node in graph for finished in _postorder(graph, node, visited)]
    visited = set()
    components = [_postorder(reversed_graph, node, visited) for node in reversed(order)]
    large = [sorted(component) for component in components if len(component) > 1]
    return sorted(large, key=lambda component: (-len(component), component))


def _postorder(graph: Graph, start: str, visited: set[str]) -> list[str]:
    """Return the new nodes of a depth-first search, in postorder; add them to ``visited``."""
    if start in visited:
        return []
    visited.add(start)
    finished: list[str] = []
    path = [(start, iter(graph.get(start, ())))]
    while path:
        node, targets = path[-1]
        target = next((target for target in targets if target not in visited), None)
        if target is None:
            finished.append(node)
            path.pop()
        else:
            visited.add(target)
            path.append((target, iter(graph.get(target, ()))))
    return finished
