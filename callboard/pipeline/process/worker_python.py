"""What Spark starts as Python: it asks `fork_server` for a fork, and stands for that process.

    worker_python.py PYTHON SOCKET -m MODULE ARGUMENTS…

Where there is no server, or something else than a module is to run, it becomes PYTHON itself.
It runs without site-packages, so that it is there at once.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType


def main() -> int:
    """Return the exit code of the fork."""
    python, place, *arguments = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until it can be handed on
    process = _ask(connection, place, arguments[1:]) if arguments[:1] == ["-m"] else 0
    if not process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.execv(python, [python, *arguments])  # noqa: S606  # what Spark asked for

    def hand_on(number: int, _frame: FrameType | None) -> None:
        os.kill(process, number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.close(0)
    os.close(1)  # Spark reads to its end
    code = connection.recv(1)
    return code[0] if code else 1


def _ask(connection: socket.socket, place: str, arguments: list[str]) -> int:
    """Return the id of a fork; 0 if there is none."""
    request = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
    data = json.dumps(request).encode()
    try:
        connection.connect(place)
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
