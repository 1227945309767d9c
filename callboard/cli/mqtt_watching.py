"""The work of `callboard mqtt top` and `trace`: looks at a router's console."""

import contextlib
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import typer

from callboard.cli.columns import columns
from callboard.cli.failure import MISUSED, Failure

PATIENCE: Final = 5.0
"""Seconds that the console has to answer."""
SHOWN: Final = 30
"""Clients of one look."""
_HEAD: Final = ("CLIENT", "ADDRESS", "STATUS", "SUBS", "INFLIGHT", "BEHIND", "PACKETS")


def ask(url: str, path: str) -> Any:
    """Return what the console answers for a path.

    Raises:
        Failure: nobody answers there, or it is no console.
    """
    target = url.rstrip("/") + path
    if not target.startswith(("http://", "https://")):
        raise Failure(why=f"{url!r} is no URL", step="write http://HOST:PORT", code=MISUSED)
    try:
        with urllib.request.urlopen(target, timeout=PATIENCE) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        why = f"{target} answers {error.code}"
    except (OSError, ValueError) as error:
        why = f"no console answers at {url}: {getattr(error, 'reason', error)}"
    raise Failure(why=why, step='set console = "HOST:PORT" in the router\'s file')


def watch(url: str, *, interval: float, looks: int, as_json: bool) -> None:
    """Look at a router again and again."""
    before: dict[str, Any] | None = None
    seen = 0
    with contextlib.suppress(KeyboardInterrupt), _screen(as_json=as_json) as show:
        while not looks or seen < looks:
            if seen:
                time.sleep(interval)
            told = ask(url, "/router")
            devices = ask(url, "/devices")["devices"]
            if as_json:
                typer.echo(json.dumps({"router": told, "devices": devices}))
            else:
                show(_lines(told, before, interval, devices))
            sys.stdout.flush()
            before = told
            seen += 1


@contextlib.contextmanager
def _screen(*, as_json: bool) -> Iterator[Callable[[list[str]], None]]:
    if as_json or not sys.stdout.isatty():
        yield lambda lines: typer.echo("\n".join(lines))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        yield lambda lines: live.update(Text("\n".join([*lines, "Ctrl-C ends"])), refresh=True)


def _lines(
    told: dict[str, Any],
    before: dict[str, Any] | None,
    interval: float,
    devices: list[dict[str, Any]],
) -> list[str]:
    meters = told["meters"]

    def rate(name: str) -> str:
        if before is None:
            return f"{meters[name]} in all"
        return f"{(meters[name] - before['meters'][name]) / interval:.0f}/s"

    devices.sort(key=lambda each: (each["behind"], each["packets_in"]), reverse=True)
    rows = [
        (
            each["client_id"],
            each["address"] or "away",
            each["status"],
            str(each["subscriptions"]),
            str(each["inflight"]),
            str(each["behind"]),
            str(each["packets_in"]),
        )
        for each in devices[:SHOWN]
    ]
    return [
        f"{told['connections']} connected, {told['sessions_away']} away, "
        f"{told['filters']} filters, {told['retained']} retained, "
        f"{told['log_bytes'] / 1024:.0f} KiB in logs",
        f"published {rate('published')}, delivered {rate('delivered')}, lost {meters['lost']}",
        columns(_HEAD, rows, right={3, 4, 5, 6}),
    ]


def trace_client(
    url: str, client: str, *, seconds: float, interval: float, as_json: bool
) -> None:
    """Print the packets of one client."""
    end = time.monotonic() + seconds if seconds else None
    since = 0
    was_connected: bool | None = None
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            told = ask(url, f"/trace/{quote(client, safe='')}/{since}")
            if told["connected"] != was_connected and not as_json:
                typer.echo(
                    f"{client} is {'connected' if told['connected'] else 'not connected'}"
                )
            was_connected = told["connected"]
            for packet in told["packets"]:
                typer.echo(json.dumps(packet) if as_json else _packet_line(packet))
            sys.stdout.flush()
            since = told["count"]
            if end is not None and time.monotonic() >= end:
                return
            time.sleep(interval)


def _packet_line(packet: dict[str, Any]) -> str:
    hidden = {"number", "time", "direction", "packet"}
    arrow = "->" if packet["direction"] == "in" else "<-"
    fields = " ".join(f"{name}={value}" for name, value in packet.items() if name not in hidden)
    return f"{packet['time']:.3f} {arrow} {packet['packet']} {fields}"
