"""Real clients of Zeek's WebSocket at our port: zeekpy, zeek-client, Node, a browser."""

import json
import shutil
import subprocess
import threading
from contextlib import contextmanager

import pytest

from callboard import Endpoint
from callboard.broker import zeek
from callboard.model.scalar import Count, Enum
from callboard.pages import PageServer, text_page
from tests.polling import eventually

pytestmark = pytest.mark.slow

WAIT = 20.0


@pytest.fixture
def endpoint():
    with Endpoint() as made:
        yield made


def url(port):
    return f"ws://127.0.0.1:{port}/v1/messages/json"


@pytest.mark.quick
def test_zeekpy_consumes_and_publishes(endpoint):
    zeekpy = pytest.importorskip("zeekpy")
    client = zeekpy.Zeek(
        url(endpoint.listen_web_socket()), topics=["/zeek"], app_name="detector/1"
    )
    got = []

    @client.on("ping")
    def ping(text: str, number: zeekpy.count):
        got.append((text, number))
        if len(got) == 3:
            client.stop()

    with endpoint.make_subscriber("/up") as up, client:
        client.publish("/up", "hello", ["grün", zeekpy.count(7), 1.5, zeekpy.enum("A::B")])
        topic, data = up.get(WAIT)
        for number in range(3):
            endpoint.publish("/zeek/x", zeek.Event("ping", "hi", Count(number)))
        consuming = threading.Thread(target=client.consume)
        consuming.start()
        consuming.join(WAIT)

    assert (topic, zeek.Event(data).name()) == ("/up", "hello")
    assert zeek.Event(data).args() == ["grün", Count(7), 1.5, Enum("A::B")]
    assert got == [("hi", 0), ("hi", 1), ("hi", 2)]


@contextmanager
def controller(endpoint, port):
    """Answer what zeek-client asks a management controller."""
    subscriber = endpoint.make_subscriber("zeek/management")
    asked = []

    def answer():
        try:
            while True:
                topic, data = subscriber.get()
                event = zeek.Event(data)
                asked.append((topic, event.name(), event.args()))
                reqid = event.args()[0]
                if event.name().endswith("get_instances_request"):
                    name = "Management::Controller::API::get_instances_response"
                    result = (reqid, "", True, None, None, None)
                    endpoint.publish(topic, zeek.Event(name, reqid, result))
        except EOFError:
            return

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        yield asked
    finally:
        subscriber.close()
        answering.join(WAIT)


def test_zeek_client_asks_a_controller_and_gets_its_answer(endpoint):
    events = pytest.importorskip("zeekclient.events")
    connecting = pytest.importorskip("zeekclient.controller")
    types = pytest.importorskip("zeekclient.brokertypes")
    config = pytest.importorskip("zeekclient.config").CONFIG
    port = endpoint.listen_web_socket()
    config.set("controller", "host", "127.0.0.1")
    config.set("controller", "port", str(port))
    with controller(endpoint, port) as asked:
        client = connecting.Controller()
        assert client.connect()
        response, error = client.transact(
            events.GetInstancesRequest, events.GetInstancesResponse
        )

        assert (error, response.NAME.rpartition("::")[2]) == ("", "get_instances_response")
        assert response.reqid.to_py() == asked[0][2][0]
        assert isinstance(response.result, types.Vector)
    eventually(lambda: asked[0][1].endswith("get_instances_request"))


SCRIPT = """
const socket = new WebSocket("%s");
let acked = false;
socket.onopen = () => socket.send(JSON.stringify(["/page"]));
socket.onmessage = (message) => {
  const frame = JSON.parse(message.data);
  if (!acked) {
    acked = true;
    socket.send(JSON.stringify(
      {type: "data-message", topic: "/up", "@data-type": "count", data: 7}));
  } else {
    OUT(JSON.stringify(frame));
    socket.close();
  }
};
"""


def answered(endpoint, up):
    assert up.get(WAIT) == ("/up", Count(7))
    endpoint.publish("/page/x", ["grün", None])


EXPECTED = {
    "type": "data-message",
    "topic": "/page/x",
    "@data-type": "vector",
    "data": [{"@data-type": "string", "data": "grün"}, {"@data-type": "none", "data": {}}],
}


def test_the_web_socket_of_node(endpoint):
    found = shutil.which("node")
    version = (
        subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
        if found
        else "v0"
    )
    if int(version[1:].partition(".")[0]) < 20:
        pytest.skip("Node 20 or newer is not installed: older ones have no WebSocket")
    flags = [] if int(version[1:3]) >= 22 else ["--experimental-websocket"]
    script = SCRIPT % url(endpoint.listen_web_socket())
    with (
        endpoint.make_subscriber("/up") as up,
        subprocess.Popen(
            [found, *flags, "-e", script.replace("OUT(", "console.log(")],
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        answered(endpoint, up)
        out, _ = process.communicate(timeout=WAIT)

    assert json.loads(out) == EXPECTED


def test_the_web_socket_of_a_browser(endpoint, tmp_path):
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("chromium and chromedriver are not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", f"--user-data-dir={tmp_path}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    server = PageServer({"/": lambda: text_page("here")})
    port = endpoint.listen_web_socket()
    script = "const done = arguments[0];" + SCRIPT % url(port)
    with endpoint.make_subscriber("/up") as up:
        driver = webdriver.Chrome(options, service)
        try:
            driver.set_script_timeout(WAIT)
            driver.get(f"http://127.0.0.1:{server.port}/")
            answering = threading.Thread(target=answered, args=(endpoint, up))
            answering.start()
            out = driver.execute_async_script(script.replace("OUT(", "done("))
            answering.join(WAIT)
        finally:
            driver.quit()
            server.close()

    assert json.loads(out) == EXPECTED
