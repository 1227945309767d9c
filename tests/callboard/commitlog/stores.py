"""Object stores for tests: one that fails between request and answer, and S3 on a free port."""

from contextlib import contextmanager

from callboard.commitlog import LogFailed


class Killed(BaseException):
    """The process ends here."""


class FlakyObjects:
    """Objects in memory, as one client sees them; `client` is another one.

    A `fault` is asked before each request; what it returns happens: `""` (all is well),
    `"refused"` (no effect), `"unheard"` (it takes effect, and the answer is lost),
    `"killed before"`, `"killed behind"`, or for a listing `"late"` (without the newest name).
    """

    def __init__(self, fault=lambda what, name: "", store=None):
        self.url = "sim://bucket/cpu"
        self.fault = fault
        self.store = store or self
        if store is None:
            self.objects, self.times, self.now = {}, {}, 0.0
        self.requests = []

    def client(self, fault):
        return FlakyObjects(fault, self.store)

    def _asked(self, what, name, act):
        self.requests.append((what, name))
        fault = self.fault(what, name)
        if fault == "killed before":
            raise Killed
        if fault == "refused":
            raise LogFailed("503 Slow Down")
        answer = act()
        if fault == "killed behind":
            raise Killed
        if fault == "unheard":
            raise LogFailed("read timeout")
        return answer[:-1] if fault == "late" and answer else answer

    def read(self, name, start=0, end=None):
        def act():
            if name not in self.store.objects:
                raise FileNotFoundError(name)
            return self.store.objects[name][start:end]

        return self._asked("read", name, act)

    def write(self, name, pieces):
        def act():
            assert name not in self.store.objects, "written twice"
            self._put(name, b"".join(pieces))

        self._asked("write", name, act)

    def create(self, name, data):
        def act():
            if name in self.store.objects:
                return False
            self._put(name, data)
            return True

        return self._asked("create", name, act)

    def _put(self, name, data):
        self.store.objects[name] = data
        self.store.times[name] = self.store.now

    def names(self, folder):
        def act():
            start = f"{folder}/"
            return sorted(
                each.removeprefix(start)
                for each in self.store.objects
                if each.startswith(start)
            )

        return self._asked("names", folder, act)

    def remove(self, name):
        self._asked("remove", name, lambda: self.store.objects.pop(name, None))

    def age(self, name, than):
        return self.store.times[than] - self.store.times[name]


@contextmanager
def s3_server(bucket="logs"):
    """Yield the storage options of an S3 on a free port that has one bucket."""
    import fsspec
    import requests
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        # The objects of an earlier server of this process, which moto keeps for all of them.
        requests.post(f"{url}/moto-api/reset", timeout=30).raise_for_status()
        options = {"key": "k", "secret": "s", "endpoint_url": url}
        fsspec.filesystem("s3", **options).mkdir(bucket)
        yield options
    finally:
        server.stop()
        # If the environment names the endpoint, the next server gets another client.
        fsspec.get_filesystem_class("s3").clear_instance_cache()
