"""The tutorial on operating a cluster as a reader does it: its files, its commands in order."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial-cluster.md").read_text()
FILES = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CONSOLE = "".join(re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PORTS = ("4222", "4223", "4224", "9464")
#: What stands in for the programs that the page calls.
PROGRAMS = {
    "callboard": f"{shlex.quote(sys.executable)} -m callboard",
    "curl -s": f"{shlex.quote(sys.executable)} -c "
    '"import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"',
}

#: The commands of the page that end, with what they print according to it.
STEPS = [
    (command, said)
    for command, said in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", CONSOLE, re.MULTILINE)
    if "node run" not in command and not command.startswith("export")
]


class Reader:
    """Does what the page says, at ports that are free here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, subprocess.Popen[str]] = {}
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
        self._ports = {
            port: str(each.getsockname()[1]) for port, each in zip(PORTS, sockets, strict=True)
        }
        for each in sockets:
            each.close()
        for name, text in FILES:
            (folder / name).write_text(self._here(text))

    def _here(self, text: str) -> str:
        for port, own in self._ports.items():
            text = text.replace(port, own)
        return text

    def run(self, command: str, *, must_work: bool = True) -> str:
        """Run a command to its end, and return what it printed."""
        line = self._here(command)
        for name, program in PROGRAMS.items():
            line = line.replace(name, program, line.startswith(name))
        done = subprocess.run(
            line,
            shell=True,
            cwd=self.folder,
            env=os.environ | {"CALLBOARD_SECRET_FILE": "secret"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0 or not must_work, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str) -> None:
        """Start a node as the page does."""
        command = f"callboard node run --config {name}.toml"
        assert f"$ {command}\n" in CONSOLE
        self.nodes[name] = subprocess.Popen(
            [sys.executable, "-m", *command.split()],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def until(self, command: str, said: str) -> str:
        """Repeat a command until it prints something."""
        while said not in (printed := self.run(command, must_work=False)):
            assert all(node.poll() is None for node in self.nodes.values())
        return printed


@pytest.fixture
def reader(tmp_path):
    reader = Reader(tmp_path)
    yield reader
    for node in reader.nodes.values():
        node.kill()
        node.communicate()


def test_the_page_does_what_it_says(reader):
    steps = iter(STEPS)

    def follow(begin: str) -> str:
        command, said = next(steps)
        assert command.startswith(begin)
        printed = reader.run(command)
        assert printed.splitlines()[: said.count("\n")] == said.splitlines()
        return printed

    follow("(umask 077")
    follow("callboard node check")
    for name in ("east", "south"):
        reader.start(name)
        assert "listens" in reader.nodes[name].stdout.readline()
    reader.start("north")
    reader.until("callboard cluster ps 127.0.0.1:4222", "east ")
    follow("callboard cluster ps")
    follow("callboard actor ask 127.0.0.1:4222/till 5")
    follow("callboard actor ask 127.0.0.1:4222/till 7")
    reader.nodes.pop("east").send_signal(signal.SIGKILL)
    reader.until("callboard cluster restarts 127.0.0.1:4222", "no path leads to node east")
    assert "till" in follow("callboard cluster restarts")
    follow("callboard actor ask 127.0.0.1:4222/till 5")
    follow("callboard cluster losses")
    reader.start("east")
    follow("curl")
    reader.until("callboard cluster ps 127.0.0.1:4223", "south ")
    follow("callboard node drain")
    assert reader.nodes.pop("east").wait(60) == 0
    assert [*steps] == []
