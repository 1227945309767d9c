"""What runs beside a router and needs it: rules, `$SYS`, the console, bridges."""

import asyncio
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from actors.errors import CallboardError
from callboard.mqtt.bridge import Bridge
from callboard.mqtt.errors import ListenError
from callboard.mqtt.rules import RuleRunner
from callboard.mqtt.sys_topics import SysTopics
from callboard.page_server import PageServer

if TYPE_CHECKING:
    from callboard.mqtt.router import Router


class Annex:
    """Everything beside a running router.

    Attributes:
        console: the page server; None without one.
        rules: None without rules.
        bridges: to other brokers.
    """

    def __init__(self, router: "Router") -> None:
        """Start what the configuration asks for, all or none.

        Raises:
            ListenError: the console's port cannot be opened.
        """
        self.console: PageServer | None = None
        self.rules: RuleRunner | None = None
        self.bridges: list[Bridge] = []
        with ExitStack() as stack:
            self._start(router, stack)
            self._stack = stack.pop_all()

    def _start(self, router: "Router", stack: ExitStack) -> None:
        config = router.config
        if config.sys_interval:
            topics = router.call(self._sys_topics, router)
            stack.callback(router.call, topics.close)
        if config.rules:
            self.rules = RuleRunner(router, config.rules)
            stack.callback(self.rules.close)
        for settings in config.bridges:
            bridge = Bridge(router, settings)
            self.bridges.append(bridge)
            running = asyncio.run_coroutine_threadsafe(bridge.run(), router.edge.loop)
            stack.callback(bridge.ended, running)
        if config.console is not None:
            self.console = _open_console(router, config.console)
            stack.callback(self.console.close)

    @staticmethod
    def _sys_topics(router: "Router") -> SysTopics:
        edge = router.edge
        return SysTopics(
            router,
            router.machine,
            edge.door,
            router.config.sys_interval,
            edge.loop,
        )

    def close(self) -> None:
        """End all of it; the router still runs, unless its node was closed first."""
        with suppress(CallboardError):
            self._stack.close()


def _open_console(router: "Router", address: str) -> PageServer:
    from callboard.mqtt.console_pages import ConsolePages, set_log_level

    host, _, port = address.rpartition(":")
    try:
        actions = {"/logs": set_log_level}
        return PageServer(ConsolePages(router), host.strip("[]"), int(port), actions=actions)
    except OSError as error:
        msg = f"the console's {address} cannot be opened: {error.strerror}; choose another"
        raise ListenError(msg) from error
