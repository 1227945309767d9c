"""Three configurations of mosquitto are imported; mosquitto's clients run unchanged.

They have the settings that guides to mosquitto usually show, but copy none of them:

- TLS, users and topic rules,
- a bridge,
- WebSocket with users.

Each runs with mosquitto first, so that the configuration and the clients are right.
"""

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
import trustme

from callboard.mqtt import Router
from callboard.mqtt.service.config_file import make_config, read_config_file
from callboard.mqtt.service.mosquitto_import import import_files
from tests.polling import eventually

BROKER = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
TOOLS = [shutil.which(name) for name in ("mosquitto_pub", "mosquitto_sub", "mosquitto_passwd")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all((BROKER, *TOOLS)), reason="mosquitto is not installed"),
]

TIMEOUT = 60


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


class Place:
    """A folder with files of mosquitto."""

    def __init__(self, folder):
        self.folder = folder
        self.unconverted = []

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def users(self, name: str, **passwords: str) -> str:
        path = self.folder / name
        path.touch(0o600)
        for user, password in passwords.items():
            subprocess.run(
                ["mosquitto_passwd", "-b", path, user, password],
                check=True,
                capture_output=True,
            )
        return str(path)

    @contextlib.contextmanager
    def running(self, broker: str, conf: str, port: int):
        """Run a configuration with mosquitto, or imported with our router."""
        path = self.folder / f"{port}.conf"
        path.write_text(f"{conf}\n")
        if broker == "mosquitto":
            process = subprocess.Popen([BROKER, "-c", path], stderr=subprocess.DEVNULL)
            try:
                eventually(lambda: is_open(port))
                yield
            finally:
                process.terminate()
                process.wait(TIMEOUT)
            return
        imported = import_files(path)
        self.unconverted = [item.text for item in imported.unconverted]
        ours = self.folder / f"{port}.toml"
        ours.write_text(imported.text)
        with Router(make_config(read_config_file(ours), self.folder)):
            yield


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def publish(*arguments: object) -> int:
    """Run mosquitto_pub; return its exit code."""
    done = subprocess.run(
        ["mosquitto_pub", *map(str, arguments)],
        check=False,
        capture_output=True,
        timeout=TIMEOUT,
    )
    return done.returncode


@contextlib.contextmanager
def subscriber(*arguments: object):
    """Run mosquitto_sub; yield a function that returns the next line."""
    command = ["mosquitto_sub", "-v", *map(str, arguments)]
    process = subprocess.Popen(
        ["stdbuf", "-oL", *command],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield lambda: process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait(TIMEOUT)


def until_seen(read, send) -> str:
    """Send until a line arrives: the subscription may not be there yet."""
    line: list[str] = []
    reader = threading.Thread(target=lambda: line.append(read()))
    reader.start()
    end = time.monotonic() + TIMEOUT
    while reader.is_alive() and time.monotonic() < end:
        send()
        reader.join(0.3)
    return line[0]


SECURE = """
allow_anonymous false
password_file {passwords}
acl_file {acl}

listener {plain} 127.0.0.1

listener {secure} 127.0.0.1
certfile {certificate}
cafile {authority}
keyfile {key}
"""

SHIPPED = Path("/usr/share/doc/mosquitto/examples")
"""The examples of the Debian package, whose users have the password "password"."""


@pytest.mark.skipif(not SHIPPED.is_dir(), reason="the examples are not installed")
@pytest.mark.parametrize("broker", ["mosquitto", "callboard"])
def test_the_files_that_mosquitto_ships_are_imported(place, broker) -> None:
    (port,) = free_ports(1)
    settings = (SHIPPED / "mosquitto.conf").read_text()
    for name in ("pwfile.example", "aclfile.example"):
        place.write(name, (SHIPPED / name).read_text())
    conf = (
        f"{settings}\nlistener {port} 127.0.0.1\nallow_anonymous false\nuser root\n"
        f"password_file {place.folder}/pwfile.example\n"
        f"acl_file {place.folder}/aclfile.example\n"
    )
    roger = ["-p", port, "-u", "roger", "-P", "password"]
    with place.running(broker, conf, port):
        assert publish("-p", port, "-u", "roger", "-P", "wrong", "-t", "x", "-m", "x") != 0
        with subscriber(*roger, "-t", "foo/#", "-q", 1) as read:
            line = until_seen(
                read,
                lambda: (
                    publish(*roger, "-q", 1, "-t", "foo/other", "-m", "no rule"),
                    publish(*roger, "-q", 1, "-t", "foo/bar", "-m", "on"),
                ),
            )
    assert line == "foo/bar on"
    assert [text for text in place.unconverted if not text.startswith("user")] == []


RULES = """
# clients without a name
topic read $SYS/#

user roger
topic readwrite house/#
topic deny house/safe

user sensor
pattern write sensors/%u/#

user reader
topic read house/#
"""


@pytest.mark.parametrize("broker", ["mosquitto", "callboard"])
def test_tls_users_and_rules(place, broker) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    ca, key, chain = (place.folder / name for name in ("ca.crt", "server.key", "server.crt"))
    authority.cert_pem.write_to_path(ca)
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    plain, secure = free_ports(2)
    conf = SECURE.format(
        passwords=place.users("passwd", roger="secret", sensor="s", reader="r"),
        acl=place.write("acl", RULES),
        plain=plain,
        secure=secure,
        certificate=chain,
        authority=ca,
        key=key,
    )
    if broker == "mosquitto":
        conf += "user root\n"
    roger = ["-u", "roger", "-P", "secret"]
    tls = ["-h", "localhost", "-p", secure, "--cafile", ca]
    with place.running(broker, conf, plain):
        assert publish("-p", plain, *roger, "-t", "x", "-m", "x") == 0
        assert publish("-p", plain, "-u", "roger", "-P", "wrong", "-t", "x", "-m", "x") != 0
        assert publish("-p", plain, "-t", "x", "-m", "x") != 0
        with subscriber(*tls, "-u", "reader", "-P", "r", "-t", "#", "-q", 1) as read:
            line = until_seen(
                read,
                lambda: (
                    publish("-p", plain, *roger, "-q", 1, "-t", "house/safe", "-m", "denied"),
                    publish("-p", plain, *roger, "-q", 1, "-t", "garden", "-m", "no rule"),
                    publish(*tls, *roger, "-q", 1, "-t", "house/hall", "-m", "on"),
                ),
            )
        assert line == "house/hall on"
        with subscriber("-p", plain, *roger, "-t", "sensors/#", "-t", "house/+") as read:
            sensor = ["-p", plain, "-u", "sensor", "-P", "s", "-t"]
            line = until_seen(
                read,
                lambda: (
                    publish(*sensor, "sensors/sensor/t", "-m", "20"),
                    publish(*sensor, "house/hall", "-m", "no rule"),
                    publish("-p", plain, *roger, "-t", "house/door", "-m", "open"),
                ),
            )
        assert line == "house/door open"


BRIDGE = """
listener {port} 127.0.0.1
allow_anonymous true

connection central
address 127.0.0.1:{central}
remote_clientid plant-7
remote_username plant
remote_password pw
topic alarms/# out 1 local/ plant7/
topic commands/# in 1 local/ plant7/
topic "" out 1 local/status plant7/state
cleansession false
notifications true
restart_timeout 1 5
try_private false
"""


@pytest.mark.parametrize("broker", ["mosquitto", "callboard"])
def test_a_bridge_to_mosquitto(place, broker) -> None:
    port, central = free_ports(2)
    users = place.users("passwd", plant="pw", boss="b")
    far = f"listener {central} 127.0.0.1\npassword_file {users}\nuser root\n"
    boss = ["-p", central, "-u", "boss", "-P", "b"]
    conf = BRIDGE.format(port=port, central=central)
    with place.running("mosquitto", far, central), place.running(broker, conf, port):
        for topic, other in (("alarms/1", "alarms/1"), ("status", "state")):
            with subscriber(*boss, "-t", f"plant7/{other}", "-q", 1) as read:
                line = until_seen(
                    read,
                    lambda t=topic: publish(
                        "-p", port, "-q", 1, "-t", f"local/{t}", "-m", "fire"
                    ),
                )
            assert line == f"plant7/{other} fire"
        with subscriber("-p", port, "-t", "local/commands/#", "-q", 1) as read:
            line = until_seen(
                read, lambda: publish(*boss, "-q", 1, "-t", "plant7/commands/x", "-m", "stop")
            )
        assert line == "local/commands/x stop"
        with subscriber("-p", port, "-t", "$SYS/broker/connection/plant-7/state") as read:
            assert read() == "$SYS/broker/connection/plant-7/state 1"
    assert place.unconverted == []


WEB = """
per_listener_settings true
listener {plain} 127.0.0.1
protocol mqtt
allow_anonymous true
max_queued_messages 500
mount_point web/

listener {web} 127.0.0.1
protocol websockets
allow_anonymous false
password_file {passwords}
"""


@pytest.mark.parametrize("broker", ["mosquitto", "callboard"])
def test_websocket_with_users_of_one_listener(place, broker) -> None:
    plain, web = free_ports(2)
    users = place.users("passwd", ann="secret")
    conf = WEB.format(plain=plain, web=web, passwords=users)
    if broker == "mosquitto":
        conf += "user root\n"
    arrived, connected = threading.Event(), threading.Event()
    topics: list[str] = []

    def on_connect(client, _data, _flags, code, _properties):
        if not code.is_failure:
            client.subscribe("web/#", 1)

    def on_message(_client, _data, message):
        topics.append(message.topic)
        arrived.set()

    client = paho.Client(paho.CallbackAPIVersion.VERSION2, transport="websockets")
    client.username_pw_set("ann", "secret")
    client.on_connect, client.on_message = on_connect, on_message
    client.on_subscribe = lambda *_: connected.set()
    with place.running(broker, conf, plain):
        eventually(lambda: is_open(web))
        client.connect("127.0.0.1", web)
        client.loop_start()
        try:
            assert connected.wait(TIMEOUT)
            assert publish("-p", plain, "-q", 1, "-t", "lamp", "-m", "on") == 0  # no user here
            assert arrived.wait(TIMEOUT)
        finally:
            client.disconnect()
            client.loop_stop()
    assert topics == ["web/lamp"]
