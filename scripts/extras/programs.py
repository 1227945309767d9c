"""The page of each extra, and a program for what the page shows in text only."""

from typing import Final, NamedTuple


class Program(NamedTuple):
    """The programs of one extra.

    Attributes:
        page: the page in docs; None without one.
        uses: names in the blocks that must run; other blocks may need other extras.
        text: a program that runs before them.
    """

    page: str | None
    uses: tuple[str, ...] = ()
    text: str = ""


_HDF5 = """
import tempfile
from callboard import Node
from callboard.flow.file_service import FileService
with Node() as node:
    service = node.spawn(FileService, tempfile.mkdtemp(), "hdf5")
    assert service.ask("anything").exception(5) is not None  # it has started
"""

_DNS = """
from callboard import Node, errors
with Node() as node:
    try:
        node.connect("srv://_callboard._tcp.nowhere.invalid", 1.0)
    except errors.NodeUnreachable as error:
        assert "callboard[dns]" not in str(error), error
"""

_MQTT = """
from callboard.gateway import Gateway, Module
from callboard.mqtt import Router, RouterConfig
import threading
got = threading.Event()
class Sink(Module):
    def receive(self, message):
        assert message.content == b"21"
        got.set()
with Router(RouterConfig(sys_interval=0)) as router, Gateway() as gateway:
    gateway.add_module("broker", "mqtt", {"port": router.port, "subscribe": ["t"]}, start=False)
    gateway.add_module("sink", Sink)
    gateway.link("broker", "sink")
    gateway.start()
    with router.link() as link:
        link.publish("t", b"21", qos=1, retain=True).result(10)
        assert got.wait(30)
"""

_NANOMSG = """
from callboard.gateway import Gateway, ModuleFailed
with Gateway() as gateway:
    try:
        gateway.add_module("apart", "nothing:Here", {}, loader="outprocess")
    except (ModuleFailed, TypeError, ValueError) as error:
        assert "callboard[nanomsg]" not in str(error), error
import pynng
"""

_ARROW = """
from callboard.commitlog import CommitLog
with CommitLog() as log:
    log.append("/cpu", {"load": 0.5})
    log.declare({"load": "float"})
    assert log.to_arrow(fields=True).column("load").to_pylist() == [0.5]
"""

_DELTA = """
import subprocess, sys, tempfile
from deltalake import DeltaTable
from callboard.commitlog import CommitLog
folder = tempfile.mkdtemp()
with CommitLog(folder + "/flights") as log:
    log.append("/flights", {"delay": 5})
command = [sys.executable, "-m", "callboard", "log", "export", folder + "/flights"]
subprocess.run([*command, folder + "/lake", "--format", "delta"], check=True)
assert DeltaTable(folder + "/lake").to_pyarrow_table().num_rows == 1
"""

_OBJECTS = """
import tempfile
import s3fs
from callboard.commitlog import CommitLog, LogReader
with CommitLog(tempfile.mkdtemp() + "/cpu", archive="memory://logs/cpu") as log:
    log.append("/cpu", 0.5)
    log.flush()
"""

_ZSTD = """
from callboard.commitlog import CommitLog
with CommitLog(compression="zstd") as log:
    log.append_batch([{"carrier": "UA", "delay": n % 7} for n in range(5000)], topic="/flights")
    assert log.segments[0].bytes < 50_000
"""

_DATABASE = """
from callboard import Entity, Node
from callboard.lease.errors import StorageError
class Nothing(Entity):
    pass
with Node() as node:
    try:
        node.host(Nothing, {}="{}")
    except (StorageError, OSError) as error:
        assert "needs a package" not in str(error), error
    else:
        raise AssertionError("a database answers on port 1")
"""

PROGRAMS: Final = {
    "hdf5": Program("flow.md", ("FileService",), _HDF5),
    "zmq": Program("zeek.md", ("ZeroMq(",)),
    "dns": Program(None, (), _DNS),
    "dashboard": Program("dashboard.md", ("dashboard",)),
    "otel": Program("tracing.md", ("tracing.start",)),
    "mqtt": Program("gateway.md", ("Gateway",), _MQTT),
    "nanomsg": Program(None, (), _NANOMSG),
    "arrow": Program("log.md", ("flight.connect", "write_columns"), _ARROW),
    "sql": Program("log.md", ("open_sql",)),
    "delta": Program(None, (), _DELTA),
    "objects": Program("log.md", ("s3://",), _OBJECTS),
    "zstd": Program("log.md", ("compression=",), _ZSTD),
    "postgresql": Program(
        "entities.md", (), _DATABASE.format("state", "postgresql://127.0.0.1:1/x")
    ),
    "etcd": Program("entities.md", (), _DATABASE.format("leases", "etcd://127.0.0.1:1/x")),
    "websocket": Program("zeek.md", ("web_socket(",)),
}
