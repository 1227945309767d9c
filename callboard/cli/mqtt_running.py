"""The work of `callboard mqtt run` and `check`."""

import contextlib
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import typer
from pydantic import ValidationError

from actors.errors import CallboardError
from callboard import Node
from callboard.cli.credentials import read_secret
from callboard.cli.failure import MISUSED, Failure, Failures
from callboard.cli.listening import catch_signals, open_port
from callboard.cli.loading import load_app
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.collecting import tune_collector
from callboard.mqtt.config_file import (
    MqttConfigError,
    find_function,
    find_missing_files,
    make_config,
    make_limits,
    make_maps,
    make_security,
    read_config_file,
)
from callboard.mqtt.config_tables import ConfigTable, ListenerTable
from callboard.mqtt.errors import MqttError
from callboard.mqtt.hub_door import MqttDoor
from callboard.operation.logs import set_up_logging

log = logging.getLogger("callboard.mqtt")


def load_router_config(file: Path) -> tuple[ConfigTable, RouterConfig]:
    """Return what a file says, and the configuration that it makes.

    Raises:
        Failure: with a line for each mistake.
    """
    try:
        table = read_config_file(file)
    except MqttConfigError as error:
        raise Failures(error.lines) from error
    lines = find_missing_files(table, file.parent)
    module, finds_names = None, True
    try:
        module = None if table.app is None else load_app(file.parent / table.app)
    except Failure as failure:
        lines.append(f"app = {table.app!r}: {failure}")
        finds_names = False
    config = None
    try:
        config = make_config(table, file.parent, _finder(module, finds_names=finds_names))
    except MqttConfigError as error:
        lines += error.lines
    if config is None or lines:
        raise Failures([f"{file}: {line}" for line in lines])
    return table, config


def _finder(
    module: ModuleType | None, *, finds_names: bool
) -> Callable[[str], Callable[..., Any]]:
    def find(text: str) -> Callable[..., Any]:
        if ":" in text:
            return find_function(text)
        if not finds_names:  # the app is a mistake already, its functions are none
            return find
        found = getattr(module, text, None)
        if not callable(found):
            place = "no app is set" if module is None else f"{module.__name__} has none"
            msg = f"there is no function {text}: {place}; set app, or write module:function"
            raise MqttConfigError([msg])
        function: Callable[..., Any] = found
        return function

    return find


def default_config(listen: str) -> tuple[ConfigTable, RouterConfig]:
    """Return the configuration of a router without a file.

    Raises:
        Failure: the address is none.
    """
    try:
        table = ConfigTable(listeners=[ListenerTable(address=listen)])
        return table, make_config(table, Path())
    except (ValidationError, MqttConfigError) as error:
        why = f"{listen!r} is no address that a router can have without a file"
        step = "write --listen 127.0.0.1:1883, ws://HOST:PORT or unix:/PATH"
        raise Failure(why=why, step=step, code=MISUSED) from error


def run_router(file: Path | None, *, listen: str, as_json: bool) -> int:
    """Run a router until a signal comes; returns the exit code."""
    table, config = default_config(listen) if file is None else load_router_config(file)
    folder = Path() if file is None else file.parent
    set_up_logging(table.log_level)
    stop = threading.Event()
    with catch_signals(stop), contextlib.ExitStack() as stack:
        node = stack.enter_context(_node(table, folder))
        try:
            router = Router(config, node=node).start()
        except (CallboardError, OSError) as error:
            step = "choose another --listen" if file is None else f"correct {file}"
            raise Failure(why=str(error), step=f"{step} and run it again") from error
        stack.callback(router.close)
        tune_collector()
        ended = node.monitor(router.ref)
        ended.add_done_callback(lambda _: stop.set())
        maps = make_maps(table)
        if maps:
            stack.enter_context(MqttDoor(router, node, maps))
        if file is not None:
            stack.enter_context(_reloads(file, router))
        _introduce(router, as_json=as_json)
        stop.wait()
        if ended.done():
            why = f"the router ended: {ended.result(0).detail or ended.result(0).reason}"
            raise Failure(why=why, step="see the log, mend the cause and run it again")
    return 0


def _node(table: ConfigTable, folder: Path) -> Node:
    """Return the router's node, linked with the cluster that the file names."""
    settings = table.node
    path = None if settings.secret_file is None else folder / settings.secret_file
    try:
        node = Node(table.name, join=settings.join, secret=read_secret(path))
    except CallboardError as error:
        raise Failure(why=str(error), step="correct [node] join") from error
    if settings.listen is not None:
        try:
            open_port(node, settings.listen, insecure=False)
        except BaseException:
            node.close()
            raise
    return node


@contextlib.contextmanager
def _reloads(file: Path, router: Router) -> Iterator[None]:
    """Let SIGHUP take over users, topic rules, bans and limits."""

    def reload() -> None:
        try:
            table = read_config_file(file)
            limits, network = make_limits(table)
            router.reload(make_security(table), limits=limits, network=network)
        except MqttConfigError as error:
            for line in error.lines:
                log.error("%s; nothing was changed", line)
        except MqttError as error:
            log.error("%s: %s; nothing was changed", file, error)  # noqa: TRY400
        else:
            log.warning("%s: users, topic rules, bans and limits were read again", file)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=reload, name="mqtt-reload", daemon=True).start()

    before = signal.signal(signal.SIGHUP, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _introduce(router: Router, *, as_json: bool) -> None:
    console = router.console_url
    if as_json:
        typer.echo(json.dumps({"addresses": router.addresses, "console": console}))
    else:
        for address in router.addresses:
            typer.echo(f"MQTT on {address}")
        if console is not None:
            typer.echo(f"  see into it: callboard mqtt top {console}   (Ctrl-C stops it)")
    sys.stdout.flush()
