"""A gateway reads this machine's metrics, filters them and records them in a log.

Modules and links are in `gateway_metrics.toml`; only the source is Python.

Run it with `python examples/gateway_metrics.py`.
"""

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from callboard.commitlog import LogReader
from callboard.gateway import Gateway, Module

CONFIG = Path(__file__).with_suffix(".toml").resolve()
RECORDS = 10


class Machine(Module):
    """Publishes the usage of memory, disk and processors of this machine."""

    def create(self, args: Mapping[str, Any]) -> None:
        self.period = float(args.get("period", 1.0))

    def start(self) -> None:
        self.every(self.period, self.measure)

    def measure(self) -> None:
        used = {
            "memory": psutil.virtual_memory().percent,
            "disk": psutil.disk_usage("/").percent,
        }
        used |= {f"cpu{n}": p for n, p in enumerate(psutil.cpu_percent(percpu=True))}
        for subject, percent in used.items():
            content = json.dumps({"percent": percent, "at": time.time_ns()})
            self.publish(content.encode(), {"subject": subject})


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where the log goes
        with Gateway.from_file(CONFIG) as gateway:
            print(f"{len(gateway.modules())} modules run")
            while received(gateway, "log") < RECORDS:
                gateway.wait(0.05)
        with LogReader("metrics") as log:
            records = list(log.read(0))
        assert len(records) >= RECORDS
        assert all(record.payload["percent"] > 0.5 for record in records)
        print("memory was recorded:", any(r.topic == "/metrics/memory" for r in records))
        os.chdir("/")


def received(gateway: Gateway, name: str) -> int:
    status = next(each for each in gateway.modules() if each.name == name)
    assert not status.counters.failed
    assert not status.counters.lost
    return status.counters.received


if __name__ == "__main__":
    main()
