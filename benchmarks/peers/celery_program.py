"""The work of the measures of work queues with Celery on Redis; run by the peers' Python.

    celery_program.py N FOLDER      N jobs put and done, by a worker with two processes

It starts its own Redis, which listens at a socket in the folder, and appends to a file that
prints its rate, after a tenth of the work as warm-up. A job is done when the worker has
acknowledged it (`acks_late`).
"""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import redis
from celery import Celery

REDIS = "redis-server"

app = Celery("celery_program")
app.conf.task_acks_late = True
app.conf.task_ignore_result = True


@app.task
def send(to: str, number: int) -> None:
    """Do nothing with a job."""


def started(folder: Path) -> redis.Redis:
    """Start Redis, and return a connection once it answers."""
    socket = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    options += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    subprocess.Popen([REDIS, *options], stdout=subprocess.DEVNULL)
    connection = redis.Redis(unix_socket_path=str(socket))
    while True:
        with suppress(redis.ConnectionError):
            connection.ping()
            return connection
        time.sleep(0.01)


def measure(connection: redis.Redis, count: int) -> float:
    """Return the seconds that a number of jobs take."""
    begun = time.perf_counter()
    for number in range(count):
        send.delay("ann", number)
    while connection.llen("celery") or connection.hlen("unacked"):
        time.sleep(0.002)
    return time.perf_counter() - begun


def connect(folder: Path) -> None:
    """Use the Redis of a folder."""
    app.conf.broker_url = f"redis+socket://{folder}/redis.sock"


def work(folder: Path) -> None:
    """Be the worker."""
    connect(folder)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "error"]
    app.worker_main(["worker", "-c", "2", *quiet])


def main(count: int, folder: Path) -> None:
    """Measure and print."""
    connection = started(folder)
    connect(folder)
    subprocess.Popen([sys.executable, "-P", __file__, "worker", str(folder)])
    measure(connection, max(1, count // 10))
    print("rate", count / measure(connection, count), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]), Path(sys.argv[2]))
