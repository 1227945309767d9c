"""The process that serves a node's logs by Arrow Flight, and the node's hold on it.

Flight has threads of its own, which would take the interpreter from the node's runner, so it
runs in a child. What it may show to whom stands in one line on its standard input; when that
ends, because the node closed it or was killed, the child ends too. A child that ends by itself
is started again on the same port. It reads the certificate itself, again when that is renewed.
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

from callboard.commitlog.remote.disk import load_flight
from callboard.configuration.host_port import parse_host_port
from callboard.kernel.access import LinkAccess
from callboard.kernel.errors import PortUnavailable, PublicAddress, WrongValue
from callboard.kernel.tls import Tls, is_loopback
from callboard.support import after_fork

#: Seconds within which a child has to listen, and to end.
_STARTED_WITHIN: Final = 60.0
_ENDED_WITHIN: Final = 3.0
#: Seconds between two starts of a child that ends, at least and at most.
_PAUSES: Final = (0.1, 5.0)

_log = logging.getLogger("callboard.serving")


class FlightProcess:
    """A child that serves logs, from its making until `close`.

    Attributes:
        address: `grpc://HOST:PORT`, or `grpc+tls://HOST:PORT`.
    """

    def __init__(
        self, logs: Mapping[str, str], listen: str, access: LinkAccess, tls: Tls | None
    ) -> None:
        """Start it and wait until it listens.

        Args:
            logs: folders by name.
            listen: `HOST:PORT`; port 0 picks a free one.
            access: the node's secrets, which are the tokens, and what each may read.
            tls: whose certificate it shows; None speaks plainly.

        Raises:
            ExtraMissing: pyarrow is not installed.
            PublicAddress: other machines reach it, and no secret or TLS guards it.
            PortUnavailable: nothing can be served there.
            WrongValue: the address has another form.
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
        threading.Thread(target=self._attend, name="callboard-logs", daemon=True).start()

    def _start(self, port: int) -> int:
        """Start a child; returns its port."""
        location = f"{self._scheme}://{self._host}:{port}"
        child = subprocess.Popen(
            [sys.executable, "-m", "callboard.log_service.flight_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the node's to take
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert child.stdin is not None
        assert child.stdout is not None
        told = ""
        with contextlib.suppress(OSError):  # it ended at once
            child.stdin.write(json.dumps({**self._order, "location": location}) + "\n")
            child.stdin.flush()
            if select.select([child.stdout], [], [], _STARTED_WITHIN)[0]:
                told = child.stdout.readline().strip()
        if not told.isdecimal():
            child.kill()
            child.communicate()
            msg = f"no logs can be served at {location}: {told or 'the process ended at once'}"
            raise PortUnavailable(msg)
        self._child = child
        after_fork.own_pipes(child)
        return int(told)

    def _attend(self) -> None:
        """Start the child again whenever it ends."""
        port, pause = int(self.address.rpartition(":")[2]), _PAUSES[0]
        while (child := self._child) is not None:
            code = child.wait()
            if self._is_ended.wait(pause):
                return
            _log.warning(
                "the server of logs at %s ended (%s) and is started again", self.address, code
            )
            try:
                self._start(port)
                pause = _PAUSES[0]
            except (OSError, PortUnavailable) as error:
                _log.warning("%s", error)
                pause = min(2 * pause, _PAUSES[1])
        if self._is_ended.is_set():
            self._end()

    def close(self) -> None:
        """End it."""
        if after_fork.is_copy(self):
            return
        self._is_ended.set()
        self._end()

    def _end(self) -> None:
        """End the child that runs."""
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
    """Return tokens with the logs that each may read; None where everybody may read all."""
    if not access.keys:
        return None if access.permissions is None else []
    told: list[tuple[str, Sequence[str]]] = []
    for name, key in access.keys:
        patterns: Sequence[str] = ("*",)
        if access.permissions is not None:
            standing = access.permissions.admit(name, ())
            patterns = () if standing is None else tuple(standing.rights.logs)
        told.append((key.hex(), patterns))
    return told


def _papers_of(tls: Tls | None) -> dict[str, str | None]:
    """Return where chain and key are: the child reads them, also when they are renewed.

    Raises:
        TlsError: they are of no use.
    """
    if tls is None:
        return {}
    tls.for_listening()  # tells what is wrong with the files
    assert tls.certificate is not None
    key = None if tls.key is None else str(Path(tls.key).absolute())
    return {"chain": str(Path(tls.certificate).absolute()), "key": key}


def _serve(order: Mapping[str, Any]) -> None:
    """Serve what an order says until the standard input ends or the parent is another."""
    from callboard.log_service.log_door import LogDoor

    keys = order["keys"]

    def readers(token: str | None) -> Sequence[str] | None:
        if keys is None:
            return ("*",)
        shown = (token or "").encode()
        found = [may for key, may in keys if hmac.compare_digest(bytes.fromhex(key), shown)]
        return found[0] if found else None

    parent = os.getppid()
    papers = Tls(order["chain"], order["key"], mutual=False) if "chain" in order else None
    try:
        door = LogDoor(order["logs"], order["location"], readers, papers)
    except Exception as error:  # noqa: BLE001  # of Arrow; the node tells it
        print(str(error).partition(". gRPC")[0].replace("\n", " "), flush=True)  # noqa: T201
        return
    print(door.port, flush=True)  # noqa: T201
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], 1.0)[0] and not sys.stdin.read(1):
            break
        door.look()
    os._exit(0)  # at once: who reads comes again where there is a server


if __name__ == "__main__":
    _serve(json.loads(sys.stdin.readline()))
