"""The packages and their allowed imports, read from the import rules in `pyproject.toml`."""

import tomllib
from typing import Any, Final

from scripts.drawings.picture import Picture
from scripts.drawings.place import ROOT

#: The contents of each package. A package without a line here, or the reverse, is an error.
HOLDS: Final = {
    "composition": "names all parts, imports none",
    "cli": "the command line",
    "demo": "the demo: a story of four nodes",
    "dashboard": "the page in the browser",
    "simulation": "the test kit",
    "backup": "a cut of all files",
    "convention": "Thespian’s rules",
    "broker": "Endpoint",
    "mqtt": "MQTT’s router",
    "flow": "flows with credit",
    "gateway": "modules",
    "pipeline": "Spark",
    "operation": "figures, health",
    "tracing": "spans",
    "caf": "CAF’s protocol",
    "zeek": "the wires of Zeek, and doors to it",
    "store": "masters and clones",
    "topics": "publish, subscribe, peers",
    "node": "Node, with what is built on it",
    "log_service": "logs of a node",
    "entity": "actors by key",
    "lease": "one owner at a time: compare-and-set",
    "model": "topics’ data",
    "channel": "order over loss",
    "commitlog": "logs on disk",
    "pages": "status pages",
    "web": "HTTP",
    "configuration": "files, addresses",
    "figures": "metrics",
    "kernel": "the interface of the three below",
    "proxies": "remote actors as local ones: links, routes, names",
    "actors": "local actors",
    "basp": "the protocol",
    "support": "texts, times, files, slots",
    "protocol_errors": "faults of peers",
    "transitions": "tables of states",
    "tls": "certificates, read again when they change",
    "arguments": "checks, errors",
    "cbor": "values as bytes",
    "closing": "close, twins",
    "text": "terminals",
    "base_error": "the root of errors",
    "backoff": "retries",
    "bounded_queue": "limits, overflow policies",
    "locks": "names, ranks, owners",
    "checked_locks": "asserted by the tests",
}
WIDE, ROW, TALL = 504, 28, 46


def draw() -> str:
    """Return the picture."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(
        each for each in rules["contracts"] if each.get("containers") == ["callboard"]
    )
    rows = [[name.strip("() ") for name in row.split("|")] for row in layers["layers"]]
    rooms = {name for row in rows for name in row}
    if rooms != set(HOLDS):
        message = f"say in {__name__} what these hold: {sorted(rooms ^ set(HOLDS))}"
        raise ValueError(message)
    pure = pure_rooms(rules["contracts"])
    picture = Picture("The rooms of callboard. Each may import only rooms below it.")
    picture.text(8, 20, "*Each room may import only what is below it")
    y = 34.0
    for row in rows:
        if len(row) == 1:
            name = row[0]
            kind = "green" if name in pure else "box"
            picture.box(8, y, WIDE, ROW, kind=kind)
            picture.text(20, y + 19, f"*{name}")
            picture.text(130, y + 19, f"~{HOLDS[name]}")
            y += ROW + 6
            continue
        across = len(row) if len(row) < 5 else 4
        width = (WIDE - 8 * (across - 1)) / across
        for number, name in enumerate(row):
            column, line = number % across, number // across
            kind = "green" if name in pure else "box"
            left, top = 8 + column * (width + 8), y + line * (TALL + 6)
            picture.box(left, top, width, TALL, f"*{name}", f"~{HOLDS[name]}", kind=kind)
        y += (TALL + 6) * ((len(row) - 1) // across + 1)
    picture.box(8, y + 10, 18, 18, kind="green")
    picture.text(
        34,
        y + 24,
        "~pure: no sockets, clocks, threads or chance; bytes and events in, effects out",
    )
    return picture.svg()


def pure_rooms(contracts: list[dict[str, Any]]) -> set[str]:
    """Return the rooms that may use neither sockets nor threads, as a whole."""
    return {
        room.removeprefix("callboard.")
        for contract in contracts
        if {"socket", "threading"} <= set(contract.get("forbidden_modules", ()))
        and not contract.get("ignore_imports")
        for room in contract["source_modules"]
    }
