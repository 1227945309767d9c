"""`callboard log serve` in a process, killed, frozen and started again at its port."""

import json
import signal
import subprocess
import sys


class ServedLog:
    """A log that is served at one address, as long as its server lives."""

    def __init__(self, folder):
        """Serve a folder."""
        self._folder = folder
        self._listen = "127.0.0.1:0"
        self.start()

    def start(self):
        """Start a server, at the port of the one before."""
        command = ["log", "serve", str(self._folder), "--listen", self._listen, "--json"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "callboard", *command], stdout=subprocess.PIPE, text=True
        )
        self.address = json.loads(self._process.stdout.readline())["address"]
        self._listen = self.address.split("/")[2]

    def send(self, number):
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self):
        """Kill it."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self):
        """Return it."""
        return self

    def __exit__(self, *_):
        """End it."""
        self.send(signal.SIGCONT)
        self.kill()
