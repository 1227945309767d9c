"""What a start costs: nothing is imported or generated that a node does not need at once.

Time is not measured: counted, importing `Node` is 2.2 times what importing asyncio is, and a
router without a file is ready after 6 times that (docs/performance.md).
"""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, types
{program}
modules = sorted(sys.modules)
made = [
    f"{{module}}.{{name}}"
    for module, content in list(sys.modules.items())
    if module.startswith("callboard")
    for name, value in vars(content).items()
    if isinstance(value, type) and value.__module__ == module
    and "__dataclass_fields__" in vars(value)
    and isinstance(made := vars(value).get("__init__"), types.FunctionType)
    and made.__code__.co_filename == "<string>"
]
ours = [module for module in sys.modules if module.startswith("callboard")]
import json
print(json.dumps([modules, made, ours]))
"""

#: Modules that take long to import, and that a node needs later or never.
HEAVY = {
    *("ctypes", "decimal", "difflib", "email", "importlib.metadata"),
    *("json", "logging.config", "multiprocessing", "platform", "pydantic", "sqlite3"),
    *("thespian.system.sourceLoader", "typer", "uuid", "zipfile"),
    *("callboard.topics", "callboard.broker", "callboard.commitlog"),
}


def load(program):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(program=program)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def before():
    """What the interpreter itself loads here; the paths of an environment may load more."""
    return set(load("")[0])


def test_importing_a_node_loads_only_what_it_needs(before):
    modules, made, ours = load("from callboard import Node")

    assert HEAVY & {*modules} <= before
    # Those of which there is an instance at once; all others are generated when they are used.
    assert len(made) < 20, made
    assert len(ours) < 188


def test_a_router_without_a_file_needs_no_reader_of_files(before):
    modules, made, _ = load("import callboard.cli.work.router")

    assert {"pydantic", "sqlite3", "tomllib"} & {*modules} <= before
    assert len(made) < 50, made
