"""An etcd for each process of tests, on free ports."""

import atexit
import itertools
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from functools import cache
from pathlib import Path
from typing import Self

import pytest

from tests.polling import eventually


class EtcdServer:
    """A cluster of one member in a temporary folder, which is removed at the end."""

    def __init__(self) -> None:
        """Make the folder; the server is not running yet."""
        self.folder = Path(tempfile.mkdtemp(prefix="callboard-etcd-", dir="/tmp"))
        self.port, self._peer_port = _free_ports()
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        """Its address for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self, data: str = "data") -> Self:
        """Start the server on a folder of data; returns when it answers."""
        assert eventually(lambda: self._is_started(data), 30.0), "etcd did not start"
        return self

    def _is_started(self, data: str) -> bool:
        """Return whether it answers; starts it where it does not run."""
        if self._process is not None and self._process.poll() is not None:
            if not (self.folder / data / "member").exists():  # another process was faster
                self.port, self._peer_port = _free_ports()
            self._process = None
        if self._process is None:
            clients, peers = f"http://{self.place}", f"http://127.0.0.1:{self._peer_port}"
            self._process = subprocess.Popen(
                ["etcd", "--data-dir", self.folder / data, "--log-level", "error",
                 "--listen-client-urls", clients, "--advertise-client-urls", clients,
                 "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                 "--initial-cluster", f"default={peers}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        return self._answers()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.place}/health", timeout=1.0) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    def new_prefix(self) -> str:
        """Return the URL of a register that is empty."""
        return f"etcd://{self.place}/t{next(self._numbers)}"

    def kill(self) -> None:
        """End the server at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """End the server and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_ports() -> tuple[int, int]:
    """Return two ports that are free just now: etcd takes no 0."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def new_etcd() -> EtcdServer:
    """Make a server that is not running; skips the test where that cannot be."""
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed")
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (apt-get install etcd-server)")
    server = EtcdServer()
    atexit.register(server.close)
    return server


@cache
def running_etcd() -> EtcdServer:
    """Return the server of this process of tests, started when it is first wanted."""
    return new_etcd().start()
