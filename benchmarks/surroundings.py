"""The environment of a run: the machine, its load, and the measured versions."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from benchmarks.peers import caf, casty, environment, mqtt_brokers, pykka, xoscar, zeek_broker
from benchmarks.processes import ROOT


def machine() -> dict[str, str | int | float]:
    """Describe this machine; `load` is the average of the minute before the first run."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """Name the processor, from Linux's own list where there is one."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of callboard and of the peers."""
    return {
        "callboard": f"{version('callboard')} ({commit()})",
        "Python": platform.python_version(),
        "CAF": caf.version(),
        "xoscar": xoscar.version(),
        "pykka": pykka.version(),
        "Thespian": version("thespian"),
        "Zeek Broker": zeek_broker.version(),
        "mosquitto": mqtt_brokers.version(),
        "amqtt": environment.version("amqtt"),
        "detangle": environment.version("detangle"),
        "eventsourcing": environment.version("eventsourcing"),
        "casty": casty.version(),
        "Celery": environment.version("celery"),
        "zeekpy": installed("zeekpy"),
    }


def installed(package: str) -> str:
    """Return the version of a peer in our own environment."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def commit() -> str:
    """Name the commit that is checked out, with `+` when files differ from it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return done.stdout.strip()
