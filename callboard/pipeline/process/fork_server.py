"""Python processes for Spark on this machine, forked from a prepared one.

Spark starts about ten processes in sequence before a query returns its first results. Each of
them imports pyspark from a zip of sources, which Python compiles every time. Here one process
imports everything while Java starts, and the others are forks of it.

| file in the folder | |
|---|---|
| `python` | the program that Spark starts in place of Python: `worker_python` |
| `socket` | the socket on which it requests a fork |

A request is a length of 4 bytes, with the descriptors of standard input, output and error,
and then that many bytes of JSON: `{"argv": […], "env": {…}, "cwd": …}`. The reply is the
process id in 4 bytes, and later one byte with the exit code, unless the process is killed.
Numbers are big-endian.
"""

import functools
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = "callboard-python-"
_CLIENT: Final = Path(__file__).with_name("worker_python.py")
#: Requests that may wait during the imports.
_WAITING: Final = 64

#: OpenBLAS must not start threads, because a fork does not copy them.
_SINGLE: Final = "OPENBLAS_NUM_THREADS"

_NEEDED: Final = (
    # No module that Spark runs with `-m`: Python warns if such a module is imported already.
    "pandas",
    "callboard.pipeline.spark.format",
    "callboard.pipeline.state",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)


@functools.cache
def start_python(hash_seed: str = "0") -> Path:
    """Return the program to start in place of Python; its server ends with this process.

    If the temporary folder cannot hold sockets, it is Python itself.

    Args:
        hash_seed: Hash seed of Spark's workers, which must agree on hashes.
    """
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    python = folder / "python"
    command = [sys.executable, "-I", "-S", str(_CLIENT), sys.executable, str(folder / "socket")]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    python.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(folder / "socket"))
        except OSError:  # for instance because the path is too long
            shutil.rmtree(folder)
            return Path(sys.executable)
        listener.listen(_WAITING)
        _start_server(folder, listener.fileno(), hash_seed)
    return python


def _start_server(folder: Path, listener: int, hash_seed: str) -> None:
    """Start the process that forks; it ends with this one."""
    process = subprocess.Popen(  # noqa: S603  # this very interpreter, no shell
        [sys.executable, "-u", "-m", __name__, str(folder), str(listener)],
        stdin=subprocess.PIPE,  # closed when this process ends
        stdout=subprocess.DEVNULL,
        pass_fds=(listener,),
        start_new_session=True,  # like Java: a signal to the driver's group is for the driver
        env={**os.environ, "PYTHONHASHSEED": hash_seed, _SINGLE: "1"},
    )
    from callboard.support import after_fork  # not in the process that forks

    after_fork.own_pipes(process)
    after_fork.at_exit(_end, process, folder)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End the process that forks, and remove its folder."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def main(folder: Path, listener: socket.socket) -> None:
    """Import, then fork for each request until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, as with Java
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    for name in _NEEDED:
        if find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    gc.freeze()
    while True:
        ready, _, _ = select.select([0, listener.fileno()], [], [])
        if 0 in ready:
            shutil.rmtree(folder, ignore_errors=True)
            return
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                _serve(connection)


def _serve(connection: socket.socket) -> None:
    """Run the requested module; never return."""
    code = 1
    try:
        request = _take_over(connection)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.sendall(os.getpid().to_bytes(4))
        _prepare(request)
        code = _run(request["argv"])
    except BaseException:  # noqa: BLE001  # as Python reports an uncaught error
        traceback.print_exc()
    finally:
        with suppress(OSError):  # the requester has ended
            connection.sendall(bytes([code & 0xFF]))
        os._exit(code & 0xFF)


def _take_over(connection: socket.socket) -> dict[str, Any]:
    """Read a request, and replace the standard descriptors by its own."""
    head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    size = int.from_bytes(head)
    with connection.makefile("rb") as source:
        request: dict[str, Any] = json.loads(source.read(size))
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return request


def _prepare(request: Mapping[str, Any]) -> None:
    """Apply environment, folder and path; pyspark is imported, so its zips are omitted."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    import pyspark

    zips = str(Path(pyspark.__file__).parent)
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [
        entry
        for entry in folders
        if entry and entry not in sys.path and not entry.startswith(zips)
    ]


def _run(arguments: list[str]) -> int:
    """Run a module like `python -m`; return the exit code."""
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
            return 1
        return end.code or 0
    return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
