"""Implementation of `callboard mqtt run` and `check`: a router and its configuration file."""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from callboard.cli.cli_error import CliError, CliErrors, UsageError
from callboard.cli.loading import load_app
from callboard.cli.options import JsonOptions, read_secrets
from callboard.cli.own_node import catch_signals, open_port
from callboard.kernel.errors import CallboardError, TlsError, WrongValue
from callboard.mqtt import ListenerSettings, Router, RouterConfig
from callboard.mqtt.service.router import tune_collector
from callboard.mqtt.service.topic_bridge import MqttDoor
from callboard.mqtt.wire.errors import ListenError
from callboard.node import Node
from callboard.operation.logs import set_up_logging
from callboard.support.files.private_file import open_private

if TYPE_CHECKING:  # it loads pydantic, which a router without a file does not need
    from callboard.mqtt.service import config_file

_log = logging.getLogger("callboard.mqtt")


def route(file: Path | None, listen: str, options: JsonOptions) -> None:
    """Run a router until a signal.

    Args:
        file: the configuration file; None for the default configuration.
        listen: address for clients, without a file.
        options: the options of the command.

    Raises:
        CliError: the file has errors, or the router ended.
    """
    table, config = (None, _default_config(listen)) if file is None else load_config(file)
    set_up_logging(table.log_level if table else "warning")
    with catch_signals() as stop, contextlib.ExitStack() as stack:
        node = stack.enter_context(
            _node(table, file.parent) if table and file else Node(config.name)
        )
        try:
            router = Router(config, node=node).start()
        except (CallboardError, OSError) as error:
            step = "choose another --listen" if file is None else f"correct {file}"
            raise CliError(why=str(error), step=f"{step} and run it again") from error
        stack.callback(router.close)
        tune_collector()
        ended = node.monitor(router.ref)
        ended.add_done_callback(lambda _: stop.set())
        if table and file:
            stack.enter_context(_follow(table, file, router, node))
        _introduce(router, options)
        stop.wait()
        if ended.done():
            reason = f"the router ended: {ended.result(0).detail or ended.result(0).reason}"
            raise CliError(why=reason, step="see the log, correct the cause and run it again")


def load_config(file: Path) -> tuple["config_file.ConfigTable", RouterConfig]:
    """Return the content of a file, and the configuration made from it.

    Raises:
        CliErrors: the configuration has errors; there is a line for each.
    """
    from callboard.mqtt.service import config_file

    try:
        table = config_file.read_config_file(file)
    except config_file.MqttConfigError as error:
        raise CliErrors(error.lines) from error
    lines = config_file.find_missing_files(table, file.parent)
    module, finds_names = None, True
    try:
        module = None if table.app is None else load_app(file.parent / table.app)
    except CliError as failure:
        lines.append(f"app = {table.app!r}: {failure}")
        finds_names = False
    config = None
    try:
        config = config_file.make_config(
            table, file.parent, _finder(module, finds_names=finds_names)
        )
    except config_file.MqttConfigError as error:
        lines += error.lines
    if config is None or lines:
        raise CliErrors([f"{file}: {line}" for line in lines])
    return table, config


def write_new(file: Path, text: str) -> None:
    """Write a file that does not exist yet; only its user can read it.

    Raises:
        CliError: the file exists, or cannot be written.
    """
    try:
        with open(file, "x", encoding="utf-8", opener=open_private) as written:
            written.write(text)
    except OSError as error:
        step = "choose another --output"
        raise CliError(why=f"{file} cannot be written: {error.strerror}", step=step) from error


def change_file(file: Path, change: Callable[[str], str]) -> "config_file.ConfigTable":
    """Change the text of a configuration file; return its content.

    Raises:
        CliError: the file cannot be read or written, or would have errors.
    """
    from callboard.mqtt.service import config_file

    draft = file.with_name(f".{file.name}.new")
    try:
        mode = file.stat().st_mode
        text = change(file.read_text(encoding="utf-8"))
        with open(draft, "w", encoding="utf-8", opener=open_private) as written:
            written.write(text)
        draft.chmod(mode)
        table = config_file.read_config_file(draft)
        draft.replace(file)
    except config_file.MqttConfigError as error:
        raise CliErrors(
            [line.replace(str(draft), str(file)) for line in error.lines]
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(
            why=f"{file} cannot be changed: {error}", step="check the file"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return table


def _finder(
    module: ModuleType | None, *, finds_names: bool
) -> Callable[[str], Callable[..., Any]]:
    """Return a function that finds functions: by module, or by name in the app."""
    from callboard.mqtt.service import config_file

    def find(text: str) -> Callable[..., Any]:
        if ":" in text:
            return config_file.find_function(text)
        if not finds_names:  # the app has failed to load, which is reported already
            return find
        function: Callable[..., Any] | None = getattr(module, text, None)
        if not callable(function):
            place = "no app is set" if module is None else f"{module.__name__} has none"
            msg = f"there is no function {text}: {place}; set app, or write module:function"
            raise config_file.MqttConfigError([msg])
        return function

    return find


def _default_config(listen: str) -> RouterConfig:
    """Return the configuration of a router without a file.

    Raises:
        CliError: the address is invalid.
    """
    config = RouterConfig((ListenerSettings(listen),))
    try:
        config.listeners[0].parse()
    except ListenError as error:
        reason = f"{listen!r} is not a valid address of a router without a file"
        step = "write --listen 127.0.0.1:1883, ws://HOST:PORT or unix:/PATH"
        raise UsageError(why=reason, step=step) from error
    return config


def _node(table: "config_file.ConfigTable", folder: Path) -> Node:
    """Return the router's node, linked with the cluster in the file."""
    settings = table.node
    path = None if settings.secret_file is None else folder / settings.secret_file
    try:
        node = Node(
            table.name,
            join=settings.join,
            secret=read_secrets(path) or None,
            allow_unsealed=settings.allow_unsealed,
            encrypt=settings.encrypt,
        )
    except (TlsError, WrongValue) as error:
        step = (
            "encrypt = true needs a secret_file, and Python 3.13; else leave it out of [node]"
        )
        raise CliError(why=str(error).partition(";")[0], step=step) from error
    except CallboardError as error:
        raise CliError(why=str(error), step="correct [node] join") from error
    if settings.listen is not None:
        try:
            open_port(node, settings.listen, insecure=False)
        except BaseException:
            node.close()
            raise
    return node


@contextlib.contextmanager
def _follow(
    table: "config_file.ConfigTable", file: Path, router: Router, node: Node
) -> Iterator[None]:
    """Open the bridges to topics, and reload users, rules and limits on SIGHUP."""
    from callboard.mqtt.service import config_file

    def reload() -> list[str]:
        problems: list[str] = []
        try:
            table, config = load_config(file)
            limits, network, rules = config.limits, config.network, config.rules
            router.reload(config.security, limits=limits, network=network, rules=rules)
            if table.node.secret_file is not None:
                node.change_secrets(read_secrets(file.parent / table.node.secret_file))
        except CliErrors as error:
            problems = error.lines
        except (CallboardError, OSError, ValueError) as error:
            problems = [f"{file}: {error}"]
        for line in problems:
            _log.error("%s; nothing was changed", line)
        if not problems:
            _log.warning("%s: reloaded users, bans, rules, limits and secrets", file)
        return problems

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=reload, name="mqtt-reload", daemon=True).start()

    router.reload_file = reload
    previous = signal.signal(signal.SIGHUP, on_signal)
    maps = config_file.make_maps(table)
    try:
        with MqttDoor(router, node, maps) if maps else contextlib.nullcontext():
            yield
    finally:
        signal.signal(signal.SIGHUP, previous)


def _introduce(router: Router, options: JsonOptions) -> None:
    """Print the addresses of the router."""
    console = router.console_url
    lines = [f"MQTT on {address}" for address in router.addresses]
    if console is not None:
        lines.append(f"  inspect it: callboard mqtt top {console}   (Ctrl-C stops it)")
    summary = {"addresses": router.addresses, "console": console}
    options.say(summary, "\n".join(lines))
