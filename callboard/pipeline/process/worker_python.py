"""The program that Spark starts as Python: it requests a fork from `fork_server`.

    worker_python.py PYTHON SOCKET -m MODULE ARGUMENTS…

It stands for the fork: it passes signals on and exits with its code. Without a server, or for
anything but a module, it becomes PYTHON itself. It starts without site-packages to be fast.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType


def main() -> int:
    """Return the exit code of the fork."""
    python, socket_path, *arguments = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until `forward` is installed
    process = (
        _request_fork(connection, socket_path, arguments[1:]) if arguments[:1] == ["-m"] else 0
    )
    if not process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.execv(python, [python, *arguments])  # noqa: S606  # Spark's own command

    def forward(number: int, _frame: FrameType | None) -> None:
        os.kill(process, number)

    signal.signal(signal.SIGTERM, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.close(0)
    os.close(1)  # Spark reads until the fork closes its copy
    code = connection.recv(1)
    return code[0] if code else 1


def _request_fork(connection: socket.socket, socket_path: str, arguments: list[str]) -> int:
    """Return the process id of a fork; 0 without a server."""
    request = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
    data = json.dumps(request).encode()
    try:
        connection.connect(socket_path)
        socket.send_fds(connection, [len(data).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(data)
        return int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    except OSError:
        return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProcessLookupError:
        sys.exit(1)
