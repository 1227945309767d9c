"""A cluster of release 0.1 becomes one of this release, one node after the other, under load.

`CALLBOARD_MEMBERS` says how many nodes there are; three by default.
"""

import io
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from callboard import Node
from callboard.broker import Endpoint
from callboard.commitlog import LogError, LogReader
from callboard.errors import CallboardError
from callboard.log_service.log_writer import LogWriter
from tests.faults.upgrade_member import Entry, Ledger
from tests.polling import eventually

mqtt = pytest.importorskip("paho.mqtt.client")

ROOT = Path(__file__).parents[2]
RELEASED = "a95cf891"
MEMBERS = int(os.environ.get("CALLBOARD_MEMBERS", "3"))
KEYS = 20

#: Seconds of load before the first upgrade, and after each.
CALM = 3.0


def archive(commit: str) -> bytes:
    """Return the files of a commit, or skip the test where git does not have them."""
    done = subprocess.run(
        ["git", "-C", ROOT, "archive", "--format=tar", commit], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"git does not have release 0.1 ({commit})")
    return done.stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of release 0.1."""
    folder = tmp_path_factory.mktemp("released")
    # With the filter "tar": links between folders are part of the tree.
    with tarfile.open(fileobj=io.BytesIO(archive(RELEASED))) as files:
        files.extractall(folder, filter="tar")
    return folder


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on at this moment."""
    with ExitStack() as stack:
        local = ("127.0.0.1", 0)
        sockets = [stack.enter_context(socket.create_server(local)) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class Member:
    """A process of the cluster, which is stopped and started again with another release."""

    def __init__(self, tree: Path, options: dict[str, Any]) -> None:
        self.options = options
        self._start(tree)

    def _start(self, tree: Path) -> None:
        program = Path(__file__).with_name("upgrade_member.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), json.dumps(self.options)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", f"{self.options['name']} failed"

    def upgrade(self, **options: Any) -> None:
        """Stop the process as an operator does, and start this release in its place."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0
        self.options["node"].update(options)
        self._start(ROOT)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Load(threading.Thread):
    """One kind of load: calls a function with rising numbers until the test ends.

    Attributes:
        acknowledged: the numbers for which the function returned.
        seconds: how long each acknowledged call took, with the time at which it began.
        failure: what ended the load, if it was not the test.
    """

    def __init__(
        self, put: Callable[[int], None], pause: float, ended: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._put, self._pause, self._ended = put, pause, ended
        self.acknowledged: list[int] = []
        self.seconds: list[tuple[float, float]] = []
        self.refused = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        number = 0
        try:
            while not self._ended.wait(self._pause):
                number += 1
                began = time.monotonic()
                try:
                    self._put(number)
                except (CallboardError, LogError):
                    self.refused += 1
                else:
                    self.acknowledged.append(number)
                    self.seconds.append((began, time.monotonic() - began))
        except BaseException as error:
            self.failure = error
            raise


class Subscriber:
    """An MQTT client with a lasting session, and one that publishes with QoS 1."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self.received: list[int] = []
        self._reader = self._client("reader", port, stack, clean=False)
        self._reader.on_message = lambda _c, _u, msg: self.received.append(int(msg.payload))
        self._reader.on_connect = lambda *_: self._reader.subscribe("meters/#", 1)
        self._writer = self._client("writer", port, stack, clean=False)
        self._acknowledged: set[int] = set()
        self._writer.on_publish = lambda _c, _u, packet, *_: self._acknowledged.add(packet)
        for client in (self._reader, self._writer):
            client.connect("127.0.0.1", port)
            client.loop_start()

    @staticmethod
    def _client(name: str, port: int, stack: ExitStack, *, clean: bool) -> Any:
        version = mqtt.CallbackAPIVersion.VERSION2
        client = mqtt.Client(version, name, clean_session=clean)
        client.reconnect_delay_set(1, 1)
        stack.callback(client.loop_stop)
        return client

    def publish(self, number: int) -> None:
        """Publish a number, and return when the router has acknowledged it.

        A message that is published without a connection is sent with the next one.
        """
        packet = self._writer.publish("meters/a", str(number), 1).mid
        eventually(lambda: packet in self._acknowledged)
        self._acknowledged.remove(packet)


def quantile(load: Load, first: float, last: float) -> float:
    """Return the 99th percentile of the calls that began in a time, in seconds."""
    values = [taken for began, taken in load.seconds if first <= began < last]
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else 0.0


@pytest.fixture(params=[None, "the same"], ids=["open", "secret"])
def cluster(
    request: pytest.FixtureRequest, released: Path, tmp_path: Path
) -> Iterator[tuple[list[Member], str | None]]:
    """Members of release 0.1 with ledgers; a store, a log and a router are on one each."""
    ports = free_ports(MEMBERS + 1)
    duties = [["store"], ["log"], ["mqtt"], *([] for _ in range(MEMBERS))]
    addresses = [f"basp://127.0.0.1:{port}" for port in ports[:MEMBERS]]
    members: list[Member] = []
    try:
        for index in range(MEMBERS):
            options = {
                "name": f"member-{index}",
                "port": ports[index],
                "mqtt_port": ports[-1],
                "join": [each for each in addresses if each != addresses[index]],
                "folder": str(tmp_path),
                "duties": duties[index],
                "node": {"secret": request.param},
            }
            members.append(Member(released, options))
        yield members, request.param
    finally:
        for member in members:
            member.kill()


@pytest.mark.alone
@pytest.mark.timeout(120 + 60 * MEMBERS)
def test_a_cluster_is_upgraded_under_load_and_loses_nothing_that_was_acknowledged(
    cluster: tuple[list[Member], str | None], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    members, secret = cluster
    ports = [member.options["port"] for member in members]
    allowed = {} if secret is None else {"allow_unsealed": True}
    ended = threading.Event()
    with ExitStack() as stack:
        join = [f"basp://127.0.0.1:{port}" for port in ports]
        node = stack.enter_context(Node("client", join=join, secret=secret, **allowed))
        assert eventually(lambda: len(node.nodes()) == MEMBERS)
        assert {link.release for link in node.links()} == {"0.1"}
        endpoint = stack.enter_context(Endpoint(node=node))
        things = endpoint.attach_clone("things")
        assert eventually(lambda: things.await_idle(1.0))
        writer = LogWriter(f"{join[1]}/meters", "meter", node=node, timeout=30.0)
        stack.enter_context(writer)
        subscriber = Subscriber(members[2].options["mqtt_port"], stack)
        ledgers = [node.entity(Ledger, f"k-{key}") for key in range(KEYS)]

        def enter(number: int) -> None:
            ledgers[number % KEYS].ask(Entry(number), timeout=30).result(40)

        def put(number: int) -> None:
            things.put(number, number)
            assert things.await_idle(60.0), "the master did not confirm a put within 60 s"

        def append(number: int) -> None:
            writer.append("meter", number, number=number)

        loads = {
            "entities": Load(enter, 0.005, ended),
            "store": Load(put, 0.02, ended),
            "log": Load(append, 0.01, ended),
            "mqtt": Load(subscriber.publish, 0.01, ended),
        }
        began = time.monotonic()
        for load in loads.values():
            load.start()
        time.sleep(CALM)
        upgraded = time.monotonic()
        for member in random.Random(1).sample(members, MEMBERS):
            member.upgrade(**allowed)
            time.sleep(CALM)
        finished = time.monotonic()
        time.sleep(CALM)
        releases = {link.release for link in node.links()}
        assert (len(node.links()), releases) == (MEMBERS, {version("callboard")})
        ended.set()
        for name, load in loads.items():
            load.join(70)
            assert load.failure is None, name
            assert not load.is_alive(), name

        kept = [number for ledger in ledgers for number in ledger.ask("all").result(30)]
        assert set(loads["entities"].acknowledged) <= set(kept)
        assert len(kept) == len(set(kept)), "an event was persisted twice"
        assert set(loads["store"].acknowledged) <= set(things.keys())
        acknowledged = set(loads["mqtt"].acknowledged)
        assert eventually(lambda: acknowledged <= set(subscriber.received))
    with LogReader(tmp_path / "meters") as log:
        numbers = [record.payload for record in log]
    assert set(loads["log"].acknowledged) <= set(numbers)
    assert len(numbers) == len(set(numbers)), "a record is there twice"
    for name, load in loads.items():
        calm = quantile(load, began, upgraded)
        busy = quantile(load, upgraded, finished)
        figure(
            f"{name}: {len(load.acknowledged)} acknowledged, {load.refused} refused, "
            f"p99 {calm * 1e3:.0f} ms before and {busy * 1e3:.0f} ms during the upgrade"
        )
