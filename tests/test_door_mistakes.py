"""Mistakes at logs, endpoints, flows, gateways and MQTT: typed errors with the remedy."""

import logging
import socket
from pathlib import Path

import pytest

from callboard import CallboardError, Endpoint, errors
from callboard.broker import Backend
from callboard.commitlog import CommitLog, LogReader, Retention
from callboard.commitlog.errors import InvalidOption, LogError, WrongKind
from callboard.flow import Flow, FlowBroker
from callboard.flow.errors import FlowError
from callboard.gateway import Gateway, Module, module
from callboard.gateway.errors import GatewayError
from callboard.mqtt import ListenerSettings, Router, RouterConfig

NOWHERE = "basp://127.0.0.1:1"
SQLITE = Backend.SQLite


def closed(thing):
    """Return something that was closed."""
    thing.close()
    return thing


#: What is done with a folder that holds a plain `file`, the error, and what its text says.
LOGS = {
    "a file for a folder": (lambda at: CommitLog(at / "file"), LogError, "see its folder"),
    "a number for a folder": (lambda at: CommitLog(5), WrongKind, "a str or Path"),
    "no size": (lambda at: CommitLog(at / "a", segment_bytes=-1), InvalidOption, "more than 0"),
    "no sync": (lambda at: CommitLog(at / "a", sync="now"), InvalidOption, "none, group, each"),
    "no codec": (lambda at: CommitLog(at / "a", compression="zip"), InvalidOption, "'zstd'"),
    "columns of nothing": (lambda at: CommitLog(columns=True), InvalidOption, "needs a folder"),
    "no retention": (lambda at: Retention(bytes=-1), InvalidOption, "more than 0"),
    "retention as text": (
        lambda at: Retention.parse("byts=5"),
        InvalidOption,
        "use the limits",
    ),
    "a topic of a number": (
        lambda at: CommitLog().append(5, 1),
        LogError,
        "topic must be a text",
    ),
    "an object": (lambda at: CommitLog().append("/a", object()), LogError, "plain values"),
    "headers": (lambda at: CommitLog().append("/a", 1, headers=["x"]), LogError, "mapping of"),
    "a time in seconds": (
        lambda at: CommitLog().append("/a", 1, time=1.5),
        LogError,
        "nano",
    ),
    "a text as a list": (
        lambda at: CommitLog().append_batch("abc", topic="/a"),
        LogError,
        r"list of payloads.*append\(\)",
    ),
    "too few keys": (
        lambda at: CommitLog().append_batch([1, 2, 3], topic="/a", key=["a", "b"]),
        LogError,
        "one for each",
    ),
    "after close": (lambda at: closed(CommitLog(at / "b")).append("/a", 1), LogError, "again"),
    "an offset as text": (lambda at: CommitLog().read("x"), WrongKind, "whole number"),
    "a negative offset": (lambda at: CommitLog().read(-1), InvalidOption, "is 0"),
    "no records": (lambda at: CommitLog().readv(0, 0), InvalidOption, "at least 1"),
    "records as text": (lambda at: CommitLog().readv(0, "5"), WrongKind, "whole numbers"),
    "a log that is missing": (lambda at: LogReader(at / "none"), LogError, "create one with"),
    "a file to read": (lambda at: LogReader(at / "file"), LogError, "cannot be read"),
    "a number to read": (lambda at: LogReader(5), WrongKind, "a str or Path"),
    "an address": (lambda at: LogReader("grpc://nowhere"), InvalidOption, "HOST:PORT/NAME"),
    "another scheme": (lambda at: LogReader("http://x/y"), InvalidOption, "use grpc://"),
    "a reader's name": (lambda at: CommitLog(at / "c").reader("a/b"), InvalidOption, "letters"),
    "a number as a name": (lambda at: CommitLog(at / "d").reader(5), InvalidOption, "letters"),
    "a reader's begin": (
        lambda at: CommitLog(at / "e").reader("a", begin="x"),
        WrongKind,
        "whole number",
    ),
    "named, in memory": (lambda at: CommitLog().reader("a"), LogError, "give the log a folder"),
}

FLOWS = {
    "nobody there": (lambda at: Flow.connect(NOWHERE), errors.NodeUnreachable, "is running"),
    "no address": (lambda at: Flow.connect(5), errors.WrongArgument, "address must be a text"),
    "another scheme": (lambda at: Flow.connect("http://h:1"), errors.InvalidAddress, "basp://"),
    "no direction": (lambda at: Flow.connect(NOWHERE, "in"), FlowError, "'inject'"),
    "no credit": (lambda at: Flow.connect(NOWHERE, credit=0), FlowError, "from 1 to"),
    "credit as text": (
        lambda at: Flow.connect(NOWHERE, credit="9"),
        FlowError,
        "an integer from",
    ),
    "time as text": (
        lambda at: Flow.connect(NOWHERE, timeout="5"),
        CallboardError,
        "number of",
    ),
    "attributes": (lambda at: Flow.connect(NOWHERE, attributes=["x"]), FlowError, "mapping"),
    "no factory": (
        lambda at: FlowBroker.bind("basp://127.0.0.1:0", 5),
        errors.WrongArgument,
        "function of a BOT",
    ),
    "no scheme": (
        lambda at: FlowBroker.bind("h:0", print),
        errors.InvalidAddress,
        "write basp",
    ),
    "a number": (lambda at: FlowBroker.bind(5, print), errors.WrongArgument, "must be a str"),
    "public": (lambda at: FlowBroker.bind("basp://0.0.0.0:0", print), CallboardError, "secret"),
}


def linked(*ends):
    """Link modules of a gateway that has none."""
    with Gateway() as gateway:
        gateway.link(*ends)


def written(at, text, name="gateway.toml"):
    """Read a configuration with a text."""
    (at / name).write_text(text)
    return Gateway.from_file(at / name)


class NoModule:
    pass


GATEWAYS = {
    "no file": (lambda at: Gateway.from_file(at / "no.toml"), GatewayError, "give the path"),
    "a folder": (lambda at: Gateway.from_file(at), GatewayError, "give the path"),
    "a number": (lambda at: Gateway.from_file(5), errors.WrongArgument, "pass the path"),
    "no TOML": (lambda at: written(at, "a = ["), GatewayError, "not TOML"),
    "no JSON": (lambda at: written(at, "{", "gateway.json"), GatewayError, "not JSON"),
    "misspelt": (
        lambda at: written(at, "[[modul]]\nname='x'"),
        GatewayError,
        "known keys are load",
    ),
    "no such module": (
        lambda at: written(at, "[[modules]]\nname='x'\nmodule='nope'"),
        GatewayError,
        "one of timer",
    ),
    "no node": (lambda at: Gateway(5), errors.WrongArgument, "takes a Node"),
    "a name": (lambda at: Gateway(name=5), errors.WrongArgument, "must be a text"),
    "no function": (lambda at: module(5), errors.WrongArgument, "function of a message"),
    "unknown ends": (lambda at: linked("a", "b"), GatewayError, "there is no module 'a'"),
    "numbers": (lambda at: linked(5, 6), GatewayError, "there is no module 5"),
    "no module": (lambda at: Gateway().add_module("x", 5), CallboardError, "Module"),
}

MQTT = {
    "a number": (lambda at: Router(5), errors.WrongArgument, "RouterConfig"),
    "a dict": (lambda at: Router({"port": 1}), errors.WrongArgument, "RouterConfig"),
    "a file": (lambda at: Router("mqtt.toml"), errors.WrongArgument, "mqtt run FILE"),
    "no node": (lambda at: Router(node=5), errors.WrongArgument, "takes a Node"),
    "listeners": (lambda at: RouterConfig(listeners=5), errors.WrongArgument, "ListenerSett"),
    "a text": (lambda at: RouterConfig(listeners=("h:1",)), errors.WrongArgument, "listeners"),
    "limits": (lambda at: RouterConfig(limits={"queue": 5}), errors.WrongArgument, "Limits"),
    "security": (lambda at: RouterConfig(security=True), errors.WrongArgument, "Security"),
    "bridges": (lambda at: RouterConfig(bridges=["h:1"]), errors.WrongArgument, "BridgeSett"),
    "rules": (lambda at: RouterConfig(rules=[print]), errors.WrongArgument, "Rule"),
    "hooks": (lambda at: RouterConfig(hooks=print), errors.WrongArgument, "Hooks"),
    "sessions": (lambda at: RouterConfig(sessions="move"), errors.WrongArgument, "SessionPol"),
    "a name": (lambda at: RouterConfig(name=5), errors.WrongArgument, "name must be a str"),
    "a console": (
        lambda at: RouterConfig(console=8080),
        errors.WrongArgument,
        "console must be a",
    ),
    "seconds": (lambda at: RouterConfig(sys_interval="1"), CallboardError, "number of seconds"),
    "no listener": (lambda at: Router(RouterConfig(listeners=())), CallboardError, "needs a"),
}

ROOMS = {"log": LOGS, "flow": FLOWS, "gateway": GATEWAYS, "mqtt": MQTT}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        pytest.param(*case, id=f"{room}: {name}")
        for room, cases in (
            ("log", LOGS),
            ("flow", FLOWS),
            ("gateway", GATEWAYS),
            ("mqtt", MQTT),
        )
        for name, case in cases.items()
    ],
)
def test_what_cannot_be_meant_is_told_with_what_to_give(call, error, remedy, tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(error, match=remedy) as caught:
        call(tmp_path)

    assert isinstance(caught.value, CallboardError | LogError)


def test_listeners_may_be_a_list():
    assert RouterConfig(listeners=[ListenerSettings("127.0.0.1:0")]).listeners


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        (lambda e, at: Endpoint(node=5), errors.WrongArgument, "takes a Node"),
        (lambda e, at: e.publish(5, 1), CallboardError, "topic"),
        (lambda e, at: e.publish("/a", object()), CallboardError, "object"),
        (lambda e, at: e.make_subscriber(5), CallboardError, "topic"),
        (lambda e, at: e.make_subscriber("/a").get(-1), errors.WrongArgument, "number of mess"),
        (lambda e, at: e.make_subscriber("/a").get("x"), errors.WrongArgument, "seconds"),
        (lambda e, at: e.make_subscriber("/a", -5), errors.WrongArgument, "qsize"),
        (lambda e, at: e.record("/a", at / "file"), LogError, "see its folder"),
        (
            lambda e, at: e.attach_master("x", Backend.SQLite, {"pth": "x"}),
            CallboardError,
            '"path"',
        ),
        (
            lambda e, at: e.attach_master("x", Backend.SQLite, {"path": at}),
            CallboardError,
            "is a folder",
        ),
    ],
)
def test_mistakes_at_endpoints_are_told(call, error, remedy, tmp_path):
    (tmp_path / "file").write_text("x")
    with Endpoint() as endpoint, pytest.raises(error, match=remedy):
        call(endpoint, tmp_path)


def test_a_port_that_is_taken_is_told_by_flows_with_another_one():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"basp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CallboardError, match="choose another port, or 0"):
            FlowBroker.bind(address, print)


def test_what_is_published_through_a_shut_endpoint_is_one_line(caplog):
    with Endpoint() as endpoint:
        pass
    with caplog.at_level(logging.WARNING):
        endpoint.publish("/a", 1)
        endpoint.publish("/a", 2)

    (line,) = [told for told in caplog.messages if "was shut down" in told]
    assert "create a new one" in line


def test_two_writers_and_two_readers_of_one_name_are_told(tmp_path: Path):
    with CommitLog(tmp_path / "log") as log:
        with pytest.raises(LogError, match="use LogReader"):
            CommitLog(tmp_path / "log")
        with log.reader("a"), pytest.raises(LogError, match="use another name"):
            log.reader("a")


def test_a_factory_that_makes_no_module_is_told():
    with Gateway() as gateway, pytest.raises(CallboardError, match="not a Module"):
        gateway.add_module("x", NoModule)
    assert issubclass(module(print), Module)
