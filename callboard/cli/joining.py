"""The short-lived node of a `callboard topic` command, and its place in a cluster."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer

from callboard import Node
from callboard.cli.credentials import Credentials
from callboard.cli.failure import MISUSED, Failure
from callboard.cli.listening import open_port, parse_listen
from callboard.endpoint.hub import Hub

NAME = "callboard topic"
"""What the node of these commands calls itself."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How a command takes part.

    Attributes:
        listen: HOST:PORT where others reach it; empty for nowhere.
        peers: addresses of nodes to be linked with.
        timeout: seconds for each of them, and for subscribers to appear.
        insecure: whether a public address may be unguarded.
        credentials: shared secret and TLS.
        as_json: whether what is printed is JSON.
    """

    listen: str
    peers: tuple[str, ...]
    timeout: float
    insecure: bool
    credentials: Credentials
    as_json: bool

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        """Run a node with topics, without links so far.

        Raises:
            Failure: neither a peer nor a port was named.
        """
        if not self.peers and not self.listen:
            raise Failure(
                why="nobody could be reached",
                step="say --peer basp://HOST:PORT or --listen HOST:PORT",
                code=MISUSED,
            )
        if self.listen:
            parse_listen(self.listen)
        proof = self.credentials
        with Node(NAME, secret=proof.secret, tls=proof.tls) as node:
            hub = Hub.of(node)
            if self.listen:
                open_port(node, self.listen, insecure=self.insecure)
                self._tell_address(node.address)
            yield hub

    def link(self, hub: Hub) -> None:
        """Make the links; they are made again when they are lost."""
        for peer in self.peers:
            hub.node.connect(peer, self.timeout or 1.0)

    def _tell_address(self, address: str) -> None:
        """Say where others reach this node; on the standard error, beside the messages."""
        about = json.dumps({"address": address})
        typer.echo(about if self.as_json else f"listens on {address}", err=True)
