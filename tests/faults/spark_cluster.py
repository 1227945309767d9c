"""A log that is recorded on one host, and a standalone cluster of others that reads it there.

    python -m tests.faults.spark_cluster FOLDER SEED VICTIM…

It runs below `benchmarks.namespaces.again`. Hosts share nothing but a network and the folder
`shared`, which is Spark's own file system here (`viewfs://cluster/shared`) and has the
checkpoints. One host records what this process publishes and serves the log; one is the
driver's, which alone has the results; two are workers, with their own Python. While they
work each victim is killed at a random moment and started again: `driver`, `executor`,
`log-server`, `recorder`. At the end the results must equal those of the same job on a local
master,
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pandas
import psutil
import trustme

from benchmarks.namespaces import Network
from callboard import Endpoint, Node
from callboard.commitlog import CommitLog, LogError, LogReader
from callboard.pipeline.java import find_java
from tests.faults import spark_job
from tests.faults.quick_spark import JAVA, installed, make_home

ROOT = Path(__file__).parents[2]
DEPLOY = "org.apache.spark.deploy"
RECORDED = 4 * spark_job.ROWS
"""Records that are there before anything runs."""

SECONDS = 10**9
PERMISSIONS = """
[secrets]
spark = "the token"

[permissions.spark]
logs = ["metrics"]
"""


def until(check, seconds=400.0):
    """Poll until something is so, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        if found := check():
            return found
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def executors():
    """Return the processes that run tasks."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    return found


class Feed:
    """Publishes records to whoever records them, as quickly as they are copied."""

    def __init__(self, node, waiting):
        self._endpoint, self._waiting = Endpoint(node=node), waiting
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        number = RECORDED
        while not self._ended.wait(0.1):
            if self._waiting() < 3 * spark_job.ROWS:
                rows = range(number, number + 50)
                self._endpoint.publish_batch(
                    *((f"/n/{row % 7}", {"load": row % 97}) for row in rows)
                )
                number += 50

    def end(self):
        self._ended.set()
        self._thread.join()


class Site:
    """All hosts, and what runs on them."""

    def __init__(self, base, stack):
        self._base, self._stack = base, stack
        self.log, self.shared, self.results = base / "node", base / "shared", base / "driver"
        for folder in (self.log, self.shared, self.results):
            folder.mkdir()
        self._network = stack.enter_context(Network())
        self.node, self.driver = self._network.add_host(), self._network.add_host()
        self.driver.hide(self.log)
        self._home = make_home(base / "spark", installed())
        self._daemon = {"JAVA_HOME": str(find_java()), "SPARK_NO_DAEMONIZE": "1"}
        self.workers = [self._add_worker() for _ in range(2)]
        self._node = stack.enter_context(Node("feeder", secret="the secret"))
        self._node.listen(Network.address, 0)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.shared / "authority.pem"))
        mine = authority.issue_cert(self.node.address)
        mine.private_key_and_cert_chain_pem.write_to_path(str(base / "certificate.pem"))
        (base / "permissions.toml").write_text(PERMISSIONS)

    def _add_worker(self):
        """Create a host with its own Python and callboard, and nothing of the driver's."""
        worker = self._network.add_host()
        worker.show(Path(sys.prefix), self._base / "python")
        for name in ("callboard", "actors", "basp", "proxies"):
            worker.show(ROOT / name, self._base / "lib" / name)
        for folder in (self.log, self.results, ROOT):
            worker.hide(folder)
        return worker

    def start(self, host, name, *command, **variables):
        """Start a process on a host, in a new process group; return it and its output."""
        said = self._base / f"{name}.txt"
        with said.open("a") as file:
            process = subprocess.Popen(
                (host.command(*command) if host else command),
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONUNBUFFERED": "1",
                    **JAVA,
                    **variables,
                },
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._stack.callback(kill, process)
        return process, said

    def start_master(self):
        """Start a master; returns what it says."""
        command = [str(self._home / "bin" / "spark-class"), f"{DEPLOY}.master.Master"]
        command += ["--port", "7077", "--webui-port", "0", "--host", Network.address]
        return self.start(None, "master", *command, **self._daemon)[1]

    def start_workers(self):
        """Start the workers, which will be with the master soon; returns its address."""
        there = self._base / "python" / installed().relative_to(sys.prefix)
        home = make_home(self._base / "worker-spark", there)
        master = f"spark://{Network.address}:7077"
        for number, worker in enumerate(self.workers):
            command = [str(there / "bin" / "spark-class"), f"{DEPLOY}.worker.Worker"]
            command += ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
            own = {
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": worker.address,
                "SPARK_WORKER_DIR": str(self._base / f"work-{number}"),
                "PATH": f"{self._base}/python/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "PYTHONPATH": str(self._base / "lib"),
            }
            command += ["--host", worker.address, master]
            self.start(worker, f"worker-{number}", *command, **self._daemon, **own)
        return master

    def start_recorder(self):
        command = [sys.executable, "-m", "callboard", "topic", "record", "/n"]
        command += ["--log", str(self.log / "metrics"), "--peer", self._node.address]
        return self.start(self.node, "recorder", *command, CALLBOARD_SECRET="the secret")[0]

    def start_log_server(self):
        command = [sys.executable, "-m", "callboard", "log", "serve", str(self.log / "metrics")]
        command += ["--listen", f"{self.node.address}:8815", "--tls", str(self._base)]
        command += ["--permissions", str(self._base / "permissions.toml")]
        process, said = self.start(self.node, "log-server", *command)
        until(lambda: "is served at" in said.read_text())
        said.write_text("")
        return process

    def start_driver(self, master):
        command = [sys.executable, "-m", "tests.faults.spark_job", master]
        command += [f"grpc+tls://{self.node.address}:8815/metrics", str(self.results)]
        command += ["viewfs://cluster/shared", str(self.shared), self.driver.address]
        authority = {"CALLBOARD_LOG_AUTHORITY": str(self.shared / "authority.pem")}
        own = {
            "SPARK_LOCAL_IP": self.driver.address,
            "SPARK_HOME": str(self._home),
            **authority,
        }
        return self.start(self.driver, "driver", *command, **own)[0]

    def feed(self):
        return Feed(self._node, lambda: self.recorded() - self.copied())

    def copied(self):
        return end_of(self.results / "copies")

    def recorded(self):
        return end_of(self.log / "metrics")


def end_of(folder):
    """Return the end of a log; 0 where there is none."""
    with suppress(LogError):
        return LogReader(folder).end
    return 0


def kill(process):
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def rows_of(folder):
    """Return the results of a job: the copies unchanged, the windows in order."""
    copies = [(each.topic, each.time, each.payload) for each in LogReader(folder / "copies")]
    windows = [(each.topic, each.payload) for each in LogReader(folder / "windows")]
    return copies, sorted((topic, json.dumps(told, sort_keys=True)) for topic, told in windows)


def by_pandas(log):
    """Return the same, as pandas makes it."""
    records = list(LogReader(log))
    cut = [each.time // 1000 * 1000 for each in records]  # Spark has microseconds
    copies = [(each.topic, at, each.payload) for each, at in zip(records, cut, strict=True)]
    table = pandas.DataFrame(
        [(each.topic, each.time // SECONDS, float(each.payload["load"])) for each in records],
        columns=["topic", "start", "load"],
    )
    windows = []
    for (topic, start), loads in table[table.topic != "/n/end"].groupby(["topic", "start"])[
        "load"
    ]:
        told = {"start": time.strftime("%FT%TZ", time.gmtime(start)), "records": len(loads)}
        told |= {"min": loads.min(), "max": loads.max(), "mean": loads.mean()}
        windows.append((f"/windows{topic}", json.dumps(told, sort_keys=True)))
    return copies, sorted(windows)


def main(base, seed, victims):
    chance = random.Random(seed)
    with ExitStack() as stack:
        site = Site(base, stack)
        with CommitLog(site.log / "metrics", sync="none") as log:
            past = time.time_ns() - 100 * SECONDS
            times = [past + row * SECONDS // 500 for row in range(RECORDED)]
            rows = [{"load": row % 97} for row in range(RECORDED)]
            log.append_batch(
                rows, topic=[f"/n/{row % 7}" for row in range(RECORDED)], time=times
            )
        said = site.start_master()
        running = {"recorder": site.start_recorder(), "log-server": site.start_log_server()}
        until(lambda: "I have been elected leader" in said.read_text())
        master = site.start_workers()
        feed = site.feed()
        running["driver"] = site.start_driver(master)
        until(lambda: ended(running["driver"]) or site.copied() >= RECORDED // 2)
        assert not ended(running["driver"]), (base / "driver.txt").read_text()[-3000:]
        starts = {"log-server": site.start_log_server, "recorder": site.start_recorder}
        starts["driver"] = lambda: site.start_driver(master)
        for victim in victims:
            time.sleep(chance.uniform(0, 1.5))
            print(f"{victim} killed at {site.copied():,} of {site.recorded():,} records")
            if victim == "executor":
                chance.choice(until(executors)).kill()
            else:
                kill(running[victim])
                time.sleep(chance.uniform(0, 1.0))
                running[victim] = starts[victim]()
            behind = site.copied() + spark_job.ROWS
            until(lambda behind=behind: site.recorded() > behind)
            until(lambda behind=behind: ended(running["driver"]) or site.copied() > behind)
            if ended(running["driver"]):
                print("the driver ended, and is started again")
                running["driver"] = site.start_driver(master)
        feed.end()
        end_recording(running["recorder"])
        with CommitLog(site.log / "metrics") as log:  # an hour later all windows are final
            log.append("/n/end", {"load": 0}, time=time.time_ns() + 3600 * SECONDS)
        (site.shared / spark_job.STOP).touch()
        for _ in range(3):  # a query that an operator would start again
            if running["driver"].wait(400) == 0:
                break
            print("the driver ended, and is started again")
            running["driver"] = site.start_driver(master)
        assert running["driver"].wait(400) == 0, (base / "driver.txt").read_text()[-3000:]
        expected = by_pandas(site.log / "metrics")
        for which, folder in (("cluster", site.results), ("local", site.results / "local")):
            found = rows_of(folder)
            assert found[0] == expected[0], f"records differ: {which}"
            assert found[1] == expected[1], f"windows differ: {which}"
        print(f"{len(expected[0]):,} records and {len(expected[1]):,} windows are equal")


def ended(process):
    return process.poll() is not None


def end_recording(process):
    """Stop a recording in order, so that its log is free."""
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
