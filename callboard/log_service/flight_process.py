"""Runs the Arrow Flight server of a node's logs in a child process.

The threads of Flight would compete with the node's runner for the interpreter lock. The child
receives its configuration as one JSON line on its standard input: folders, access rights and
paths of certificates. It exits when that input is closed, which happens even if the node is
killed. If the child exits unexpectedly, the node restarts it on the same port. The child reads
the certificate files itself, and again after a renewal.
"""

import contextlib
import hmac
import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from callboard.backoff import Backoff
from callboard.commitlog.remote.disk import load_flight
from callboard.configuration.host_port import parse_host_port
from callboard.kernel.access import LinkAccess
from callboard.kernel.errors import PortUnavailable, PublicAddress, WrongValue
from callboard.kernel.ports import is_loopback
from callboard.support import after_fork
from callboard.tls.contexts import Tls

#: Seconds for a child to start listening, and to exit.
_STARTED_WITHIN: Final = 60.0
_ENDED_WITHIN: Final = 3.0
#: Seconds before restarting a child that exited, at first and at most.
_PAUSES: Final = (0.1, 5.0)

_log = logging.getLogger("callboard.serving")


class FlightProcess:
    """A child process that serves logs; it runs from construction until `close`.

    Attributes:
        address: `grpc://HOST:PORT`, or `grpc+tls://HOST:PORT`.
    """

    def __init__(
        self, logs: Mapping[str, str], listen: str, access: LinkAccess, tls: Tls | None
    ) -> None:
        """Start the child and wait until it listens.

        Args:
            logs: folders by name.
            listen: `HOST:PORT`; port 0 picks a free one.
            access: the node's secrets, which serve as tokens, and the logs each may read.
            tls: the certificate of the server; None serves without TLS.

        Raises:
            ExtraMissing: pyarrow is not installed.
            PublicAddress: other machines can reach the address, but TLS or a secret is missing.
            PortUnavailable: the child could not listen there.
            WrongValue: the address is not `HOST:PORT`.
        """
        load_flight()
        try:
            host, port = parse_host_port(listen)
        except ValueError as error:
            raise WrongValue(str(error)) from None
        if not is_loopback(host) and (tls is None or not access.keys):
            msg = f"{host} can be reached from other machines; give the node a secret and tls=…"
            raise PublicAddress(msg)
        self._scheme = "grpc" if tls is None else "grpc+tls"
        self._host = f"[{host}]" if ":" in host else host
        self._order = {"logs": dict(logs), "keys": _keys_of(access), **_papers_of(tls)}
        self._child: subprocess.Popen[str] | None = None
        self._is_ended = threading.Event()
        after_fork.register(self)
        self.address = f"{self._scheme}://{self._host}:{self._start(port)}"
        threading.Thread(target=self._supervise, name="callboard-logs", daemon=True).start()

    def _start(self, port: int) -> int:
        """Start a child and return its port."""
        location = f"{self._scheme}://{self._host}:{port}"
        child = subprocess.Popen(
            [sys.executable, "-m", "callboard.log_service.flight_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the node only
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert child.stdin is not None
        assert child.stdout is not None
        reply = ""
        with contextlib.suppress(OSError):  # it exited immediately
            child.stdin.write(json.dumps({**self._order, "location": location}) + "\n")
            child.stdin.flush()
            if select.select([child.stdout], [], [], _STARTED_WITHIN)[0]:
                reply = child.stdout.readline().strip()
        if not reply.isdecimal():
            child.kill()
            child.communicate()
            reason = reply or "the process exited immediately"
            msg = f"logs cannot be served at {location}: {reason}"
            raise PortUnavailable(msg)
        self._child = child
        after_fork.own_pipes(child)
        return int(reply)

    def _supervise(self) -> None:
        """Restart the child whenever it exits."""
        port, backoff = int(self.address.rpartition(":")[2]), Backoff(*_PAUSES)
        while (child := self._child) is not None:
            code = child.wait()
            if self._is_ended.wait(backoff.pause):
                return
            _log.warning(
                "the log server at %s exited with code %s; restarting it", self.address, code
            )
            try:
                self._start(port)
                backoff.reset()
            except (OSError, PortUnavailable) as error:
                _log.warning("%s", error)
                backoff.next_pause()
        if self._is_ended.is_set():
            self._end()

    def close(self) -> None:
        """Stop the child."""
        if after_fork.is_copy(self):
            return
        self._is_ended.set()
        self._end()

    def _end(self) -> None:
        """Stop the current child, by force if it does not exit in time."""
        child = self._child
        if child is None or child.stdin is None:
            return
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(_ENDED_WITHIN)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _keys_of(access: LinkAccess) -> list[tuple[str, Sequence[str]]] | None:
    """Return each token with its log patterns; None if all clients may read all logs."""
    if not access.keys:
        return [] if access.limits_rights else None
    keys: list[tuple[str, Sequence[str]]] = []
    for name, key in access.keys:
        patterns: Sequence[str] = ("*",)
        if access.limits_rights:
            rights = access.rights_of(name)
            patterns = () if rights is None else tuple(rights.logs)
        keys.append((key.hex(), patterns))
    return keys


def _papers_of(tls: Tls | None) -> dict[str, str | None]:
    """Return the paths of chain and key; the child reads the files itself.

    Raises:
        TlsError: the files are missing or unusable.
    """
    if tls is None:
        return {}
    tls.for_listening()  # raises if the files are unusable
    assert tls.certificate is not None
    key = None if tls.key is None else str(Path(tls.key).absolute())
    return {"chain": str(Path(tls.certificate).absolute()), "key": key}


def _serve(order: Mapping[str, Any]) -> None:
    """Serve logs as configured until standard input is closed or the parent has died."""
    from callboard.log_service.flight_log_server import FlightLogServer

    keys = order["keys"]

    def readers(token: str | None) -> Sequence[str] | None:
        if keys is None:
            return ("*",)
        secret = (token or "").encode()
        matches = [
            patterns
            for key, patterns in keys
            if hmac.compare_digest(bytes.fromhex(key), secret)
        ]
        return matches[0] if matches else None

    parent = os.getppid()
    papers = Tls(order["chain"], order["key"], mutual=False) if "chain" in order else None
    try:
        server = FlightLogServer(order["logs"], order["location"], readers, papers)
    except Exception as error:  # noqa: BLE001  # from Arrow; the node reports it
        print(str(error).partition(". gRPC")[0].replace("\n", " "), flush=True)  # noqa: T201
        return
    print(server.port, flush=True)  # noqa: T201
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], 1.0)[0] and not sys.stdin.read(1):
            break
        server.check()
    os._exit(0)  # without waiting for readers, which reconnect to the next server


if __name__ == "__main__":
    _serve(json.loads(sys.stdin.readline()))
