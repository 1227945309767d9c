"""Prerequisites of recordings: the files of a tutorial, and its nodes."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import callboard.broker as broker

__all__ = [
    "CALLBOARD",
    "cluster",
    "cluster_after_a_kill",
    "empty",
    "factors",
    "metrics",
    "three_nodes",
]

CALLBOARD: Final = (sys.executable, "-m", "callboard")

_DOCS: Final = Path(__file__).parents[2] / "docs"
_BLOCK: Final = re.compile(r"(?ms)^```(?:python|toml)\n# (\S+)\n(.*?)^```$")

#: Seconds after which a node of the tutorial is killed: after the first hundred numbers or so.
_KILLED_AFTER: Final = 6.0


@contextmanager
def empty() -> Iterator[Path]:
    """Make an empty folder."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def factors() -> Iterator[Path]:
    """Make a folder with the files of the tutorial."""
    with _files("tutorial.md") as folder:
        yield folder


@contextmanager
def three_nodes() -> Iterator[Path]:
    """Start the nodes of the tutorial; one is killed after some seconds."""
    run = (*CALLBOARD, "node", "run", "factors.py", "--name")
    with factors() as folder, ExitStack() as nodes:
        north = ("north", "--listen", "127.0.0.1:4222")
        nodes.enter_context(_node(folder, *run, *north))
        victim = nodes.enter_context(
            _node(folder, *run, "east", "--join", "basp://127.0.0.1:4222")
        )
        nodes.enter_context(_node(folder, *run, "south", "--join", "basp://127.0.0.1:4222"))
        timer = threading.Timer(_KILLED_AFTER, victim.kill)
        timer.start()
        yield folder
        timer.cancel()


@contextmanager
def cluster() -> Iterator[Path]:
    """Start the cluster of the tutorial for operators."""
    with _running_cluster() as (folder, _):
        yield folder


@contextmanager
def cluster_after_a_kill() -> Iterator[Path]:
    """Start that cluster, and kill the node on which the till is."""
    with _running_cluster() as (folder, victim):
        victim.kill()
        _await(folder, "cluster", "restarts", "127.0.0.1:4222", shows="east")
        yield folder


@contextmanager
def metrics() -> Iterator[Path]:
    """Record the log of the tutorial on Spark."""
    with empty() as folder:
        with (
            broker.Endpoint() as endpoint,
            endpoint.record("/cpu", str(folder / "metrics")) as recording,
        ):
            for second in range(200):
                for core in range(4):
                    load = 0.25 * core + (second % 20) / 100
                    endpoint.publish(f"/cpu/{core}", {"second": second, "load": load})
            recording.flush()
        yield folder


@contextmanager
def _running_cluster() -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    os.environ["CALLBOARD_SECRET_FILE"] = "secret"
    with _files("tutorial-cluster.md") as folder, ExitStack() as nodes:
        (folder / "secret").write_text("a secret of a recorded cluster")
        (folder / "secret").chmod(0o600)
        run = (*CALLBOARD, "node", "run", "--config")
        east = nodes.enter_context(_node(folder, *run, "east.toml"))
        nodes.enter_context(_node(folder, *run, "south.toml"))
        nodes.enter_context(_node(folder, *run, "north.toml"))
        _await(folder, "cluster", "ps", "127.0.0.1:4222", shows="east ")
        yield folder, east
    del os.environ["CALLBOARD_SECRET_FILE"]


@contextmanager
def _files(page: str) -> Iterator[Path]:
    """Make a folder with the files of a page; a file grows block by block."""
    with empty() as folder:
        for name, text in _BLOCK.findall((_DOCS / page).read_text()):
            with (folder / name).open("a") as file:
                file.write(text)
        yield folder


@contextmanager
def _node(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a node, from when it says that it runs."""
    node = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert node.stdout is not None
        node.stdout.readline()
        yield node
    finally:
        node.kill()
        node.communicate()


def _await(folder: Path, *command: str, shows: str) -> None:
    """Repeat a command until it shows a text."""
    while (
        shows
        not in subprocess.run(
            (*CALLBOARD, *command), cwd=folder, capture_output=True, text=True, check=False
        ).stdout
    ):
        pass
