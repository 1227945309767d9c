"""A node lives for long beside nodes, actors, endpoints and MQTT clients that come and go.

    python -m benchmarks.soak [--minutes 60] [--rest 30]

One process is measured: a node that listens and offers a class, an endpoint on it, and an MQTT
router. Another one, which is killed and started again once a minute, churns: nodes that link,
spawn, ask, monitor, kill and leave, with a word or without one; endpoints that subscribe,
publish and end; MQTT clients that come, subscribe, publish and go. The measured node also
spawns and stops actors itself. A line every ten seconds reports its contents. In the end, after
a rest, descriptors and threads must be where they were before the churn, and the line through
the memory of the second half must rise by less than 1 MiB in ten minutes.
"""

import argparse
import contextlib
import gc
import random
import subprocess
import sys
import threading
import time
from statistics import linear_regression
from typing import Final

import paho.mqtt.client as mqtt
import psutil

from benchmarks.idle import resident
from callboard import Actor, Node, errors, handler
from callboard.broker import Endpoint
from callboard.mqtt import Router

SAMPLE: Final = 10.0
"""Seconds between two lines."""

KILL: Final = 60.0
"""Seconds that a churning process lives."""

SLOPE: Final = 1 << 20
"""Bytes by which memory may rise in ten minutes."""

MEANWHILE: Final = (errors.CallboardError, OSError, TimeoutError, ValueError)
"""What may happen to somebody who churns while others end."""


class Worker(Actor):
    """Answers, keeps some data, and ends after a minute unless it is stopped."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.after(60.0, 0)

    @handler
    def over(self, _: int) -> None:
        """End."""
        self.stop_self()

    @handler
    def text(self, message: str) -> int:
        """Keep the last ten texts."""
        self.kept = [*self.kept[-9:], message]
        return len(message)


def held() -> tuple[int, int]:
    """Return the descriptors and threads of this process."""
    return psutil.Process().num_fds(), psutil.Process().num_threads()


# ----------------------------------------------------------------------------- who churns


def node_comes(address: str, chance: random.Random) -> None:
    """Link a node, use actors of the other side, and leave."""
    node = Node(f"guest{chance.randrange(1000)}", spawnable={"worker": Worker})
    try:
        node.listen("127.0.0.1", 0)
        refs = [node.remote_spawn(address, "worker") for _ in range(chance.randint(1, 5))]
        downs = [node.monitor(ref) for ref in refs]
        asks = [ref.ask("x" * chance.randint(1, 2000)) for ref in refs for _ in range(20)]
        for ask in asks:
            ask.result(10.0)
        for ref, down in zip(refs, downs, strict=True):
            if chance.random() < 0.7:
                ref.kill()
                down.result(10.0)
    finally:
        node.close()


def endpoint_comes(port: int, chance: random.Random) -> None:
    """Peer an endpoint, subscribe, publish, and end."""
    topic = f"/soak/{chance.randrange(50)}"
    with (
        Node() as node,
        Endpoint(node=node) as here,
        here.make_subscriber(topic) as subscriber,
    ):
        here.peer("127.0.0.1", port)
        for number in range(20):
            here.publish(
                f"/soak/{chance.randrange(50)}", [number, "x" * chance.randint(1, 500)]
            )
        with contextlib.suppress(TimeoutError):
            subscriber.get(0.2)


def client_comes(port: int, chance: random.Random) -> None:
    """Connect MQTT clients, subscribe, publish, and go."""
    version = chance.choice((mqtt.MQTTv311, mqtt.MQTTv5))
    name = f"client{chance.randrange(200)}"
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=version)
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe(f"soak/{chance.randrange(20)}/#", qos=chance.choice((0, 1, 2)))
    for number in range(10):
        said = client.publish(f"soak/{chance.randrange(20)}/{number}", b"x" * 100, qos=1)
    with contextlib.suppress(RuntimeError, ValueError):
        said.wait_for_publish(5.0)
    if chance.random() < 0.7:
        client.disconnect()
    else:  # without a word
        sock = client.socket()
        if sock is not None:
            sock.close()
    client.loop_stop()


def churn(address: str, endpoint: int, router: int) -> None:
    """Do all of it, one after the other, until this process is killed."""
    chance = random.Random()
    while True:
        for come, where in (
            (node_comes, address),
            (endpoint_comes, endpoint),
            (client_comes, router),
        ):
            with contextlib.suppress(*MEANWHILE):
                come(where, chance)  # type: ignore[operator]
        time.sleep(0.1)


# ------------------------------------------------------------------------ who is measured


def actors_come(node: Node, until: threading.Event) -> None:
    """Spawn actors here, tell and ask them, and let them end."""
    chance = random.Random()
    while not until.wait(0.2):
        refs = [node.spawn(Worker) for _ in range(50)]
        asks = [ref.ask("x" * chance.randint(1, 500)) for ref in refs for _ in range(5)]
        for ask in asks:
            ask.result(30.0)
        for ref in refs:
            ref.stop() if chance.random() < 0.5 else ref.kill()


def soak(seconds: float, rest: float) -> list[str]:
    """Run for a time; return the problems at the end."""
    with (
        Node("host", spawnable={"worker": Worker}) as node,
        Endpoint(node=node) as endpoint,
        endpoint.make_subscriber("/soak") as subscriber,
        Router() as router,
    ):
        node.listen("127.0.0.1", 0)
        command = [sys.executable, "-m", "benchmarks.soak", "--churn"]
        ports = [str(endpoint.listen("127.0.0.1", 0)), str(router.port)]
        command += [node.address, *ports]
        until, samples = threading.Event(), []
        before, started = held(), time.monotonic()
        print(f"before: descriptors and threads {before}", flush=True)
        local = threading.Thread(target=actors_come, args=(node, until))
        local.start()
        guest, guests = subprocess.Popen(command), 1
        try:
            while (passed := time.monotonic() - started) < seconds:
                time.sleep(SAMPLE)
                subscriber.poll()
                if passed > guests * KILL:
                    guest.kill()
                    guest.wait()
                    guest, guests = subprocess.Popen(command), guests + 1
                gc.collect()
                samples.append((passed, resident()))
                nodes, actors = len(node.nodes()), node.stats().actors
                print(
                    f"{passed:6.0f} s  {samples[-1][1] / 2**20:7.2f} MiB  {held()}  "
                    f"nodes {nodes}, actors {actors}",
                    flush=True,
                )
        finally:
            guest.kill()
            guest.wait()
            until.set()
            local.join()
        time.sleep(rest)
        gc.collect()
        after = held()
    half = [sample for sample in samples if sample[0] > seconds / 2]
    slope = linear_regression(*zip(*half, strict=True)).slope * 600 if len(half) > 1 else 0.0
    print(f"after:  descriptors and threads {after}")
    print(f"memory: {slope / 2**20:+.2f} MiB in ten minutes, in the second half")
    wrong = [f"descriptors and threads {before} became {after}"] if _more(after, before) else []
    return wrong + ([f"memory rises by {slope:,.0f} B"] if slope >= SLOPE else [])


def _more(after: tuple[int, int], before: tuple[int, int]) -> bool:
    return any(one > other for one, other in zip(after, before, strict=True))


def main() -> int:
    """Run the soak test, and print the problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long it lives")
    parser.add_argument("--rest", type=float, default=30.0, help="seconds of peace in the end")
    parser.add_argument("--churn", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.churn:
        churn(options.churn[0], int(options.churn[1]), int(options.churn[2]))
    wrong = soak(options.minutes * 60, options.rest)
    print("\n".join(wrong) or "nothing is wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
