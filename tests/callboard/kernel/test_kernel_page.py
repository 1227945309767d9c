"""The page on the kernel is complete, and its adapter needs nothing else.

Its programs run in `tests/test_pages.py`, with those of all pages.
"""

import ast
import re
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import callboard.kernel
from callboard.actors.runtime import Runtime
from callboard.kernel.context import NodeContext
from callboard.proxies.link.foreign import ForeignDoor
from callboard.proxies.link.stream import Machine

PAGE = (Path(__file__).parents[3] / "docs" / "kernel.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADAPTER = PROGRAMS[0]

KERNEL = "callboard.kernel"

#: Modules that an adapter may import: public names, the kernel, topics, and a part below.
ALLOWED = ("callboard", "callboard.closing", "callboard.kernel", "callboard.topics")


def members(protocol):
    return {
        name
        for kind in (protocol,)
        for name in {*vars(kind), *vars(kind).get("__annotations__", {})}
        if not name.startswith("_")
    }


def test_every_module_of_the_kernel_is_on_the_page():
    table = PAGE.partition("## Threads")[0]
    for module in iter_modules(callboard.kernel.__path__):
        assert f"`{module.name}`" in table, module.name


def test_every_member_of_a_node_context_is_on_the_page():
    for name in members(NodeContext):
        assert re.search(rf"[`,( ]{name}\b", PAGE), name


def test_a_runtime_has_every_member_of_a_node_context():
    runtime = Runtime("north")
    try:
        assert [name for name in members(NodeContext) if not hasattr(runtime, name)] == []
    finally:
        runtime.close()


def test_every_name_of_the_kernel_is_used_by_a_package():
    """Except public names, and names that the page explains."""
    used = {
        (node.module, alias.name)
        for file in Path(callboard.__file__).parent.rglob("*.py")
        if file.parent.name != "kernel"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(KERNEL)
        for alias in node.names
    }
    offered = {
        (f"{KERNEL}.{module.name}", alias.asname)
        for module in iter_modules(callboard.kernel.__path__)
        for node in ast.walk(
            ast.parse(Path(import_module(f"{KERNEL}.{module.name}").__file__).read_text())
        )
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    assert offered
    public = set(callboard.__all__)
    assert [
        (module, name)
        for module, name in sorted(offered - used)
        if name not in public and f"{name}`" not in PAGE
    ] == []


def test_the_page_lists_the_required_methods_of_a_wire():
    for name in members(Machine) | members(ForeignDoor):
        assert re.search(rf"`{name}\b", PAGE), name


def test_the_adapter_of_the_page_is_short_and_needs_the_kernel_alone():
    assert len(ADAPTER.splitlines()) <= 120
    modules = {
        node.module
        for node in ast.walk(ast.parse(ADAPTER))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("callboard")
    }
    packages = {".".join(module.split(".")[:2]) for module in modules}
    assert packages <= set(ALLOWED)


def test_the_adapter_runs_as_a_separate_program(tmp_path):
    program = tmp_path / "lines.py"
    program.write_text("\n".join(PROGRAMS[:2]))

    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )

    assert done.stderr == ""
    assert done.stdout == textwrap.dedent(
        """\
        SUBSCRIBED /weather
        MESSAGE /weather warm and dry
        ANSWER QUIET PLEASE
        ERROR cannot do 'JUMP'
        """
    )
