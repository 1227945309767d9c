"""Implementation of `callboard dashboard`."""

from typing import Final

from callboard.cli.cli_error import CliError
from callboard.cli.loading import load_app
from callboard.cli.own_node import DashboardOptions, catch_signals, parse_listen

#: Name of the command's own node, and the default address of the cluster.
NAME: Final = "callboard dashboard"
ADDRESS: Final = "basp://127.0.0.1:4222"


def serve(options: DashboardOptions) -> None:
    """Link with the cluster and serve the dashboard until a signal.

    Raises:
        CliError: the extra is missing, or the port cannot be opened.
    """
    from callboard.dashboard import DashboardError, DashboardServer

    parse_listen(options.listen)
    if options.app is not None:
        load_app(options.app)
    with catch_signals() as stop, options.open_node(NAME) as node:
        for address in options.join or [ADDRESS]:
            node.connect(address, options.timeout)
        try:
            server = DashboardServer(
                node,
                options.listen,
                actions=options.allow_actions,
                shows_itself=False,
                hosts=tuple(options.host or ()),
                tls=options.page_tls,
                insecure=options.insecure,
            )
        except DashboardError as error:
            reason, _, step = str(error).partition("; ")
            raise CliError(why=reason, step=step or "see docs/dashboard.md") from error
        with server:
            options.say({"url": server.link}, f"open {server.link}")
            stop.wait()
