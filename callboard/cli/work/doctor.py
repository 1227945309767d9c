"""The work of `callboard doctor`: what of this machine would trouble a node, and what to do."""

import importlib.metadata
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import callboard
from callboard import Actor, CallboardError, Node, handler
from callboard.basp.header import DIRECTORY, INSPECTOR
from callboard.cli.node import release_text
from callboard.cli.options import AccessOptions, read_secret
from callboard.cli.own_node import parse_listen
from callboard.cli.problem import one_line
from callboard.commitlog import LogError, LogReader
from callboard.commitlog.reader import list_logs
from callboard.proxies.address import parse_node_address
from callboard.proxies.errors import TlsError
from callboard.proxies.inspection import Inspect
from callboard.proxies.link.revocation import expiry_of
from callboard.proxies.link.tls import Tls
from callboard.proxies.messages import Describe
from callboard.proxies.rights.permissions import LinkAccess

#: Our package; other distributions may install one of the same name over it.
OURS: Final = "callboard"

#: Open files that a node may need: its limit of links. Below, connections fail under load.
FILES: Final = 4_096

#: Open files below which even a small cluster with its logs runs into the limit.
FEWEST_FILES: Final = 256

#: Seconds that a link or an answer may take while it is tried out.
PROBE_TIME: Final = 5.0

#: No clock that is right shows an earlier time: callboard is younger.
BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)

#: Of what is fine, what people look for: the rest is counted, and told with --json.
_TOLD: Final = (
    *("python", "place", "loopback", "port", "peer", "release", "logs", "readers"),
    "certificate",
)
#: How the addresses of servers of logs begin.
_SERVERS: Final = ("grpc://", "grpc+tls://")
_DAY: Final = 86_400.0
#: Days before its end from which on a certificate is told.
_SOON: Final = 14

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `step` is what to do about it, "" when nothing."""

    check: str
    status: Status
    text: str
    step: str = ""


class Echo(Actor):
    """Answers what it is told, so that a link can be tried out."""

    @handler
    def text(self, message: str) -> str:
        """Return the message."""
        return message


def examine(
    *,
    listen: str | None,
    peers: Sequence[str],
    access: AccessOptions,
    permissions: Path | None = None,
    certificates: Path | None = None,
) -> list[Finding]:
    """Carry out all checks.

    Args:
        listen: `HOST:PORT` that is to be free; None for none.
        peers: addresses of nodes and of servers of logs that are to be reached.
        access: what is proved to them.
        permissions: the file of who may read which logs; None for none.
        certificates: a folder that a door has its certificate from; None for none.
    """
    if listen is not None:
        parse_listen(listen)
    read_secret(access.secret_file)
    for peer in peers:
        if not peer.startswith(_SERVERS):
            parse_node_address(peer)  # or say what is wrong
    found = [
        check_python(sys.version_info[:3]),
        *check_conflicts(importlib.metadata.distributions()),
        check_place(),
        *check_requirements(),
        check_clocks(datetime.now(UTC)),
        check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        check_loopback(),
    ]
    if listen is not None:
        found.append(check_port(listen))
    if permissions is not None:
        found += check_readers(permissions)
    if certificates is not None:
        found.append(check_certificate(certificates, datetime.now(UTC).timestamp()))
    for peer in peers:
        if peer.startswith(_SERVERS):
            found += check_logs(peer, access)
            continue
        found.append(check_peer(peer, access))
        if found[-1].status == "ok":
            found += check_seals(peer, access)
            found += check_logs(peer, access)
    return found


def check_python(version: tuple[int, ...]) -> Finding:
    """Tell whether the interpreter is new enough."""
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return Finding("python", "ok", f"Python {text}")
    step = "install Python 3.11 or newer"
    return Finding("python", "fail", f"Python {text} is too old", step)


def check_conflicts(
    distributions: Iterable[importlib.metadata.Distribution],
) -> Iterator[Finding]:
    """Tell which other distributions install files into our package."""
    clean = True
    for distribution in distributions:
        name = distribution.metadata["Name"] or "?"
        files = distribution.files or ()
        if name.lower() != OURS and any(Path(str(file)).parts[0] == OURS for file in files):
            clean = False
            text = f"{name} {distribution.version} installs {OURS} too, over ours"
            step = f"pip uninstall {name}, then install callboard again"
            yield Finding("packages", "fail", text, step)
    if clean:
        yield Finding("packages", "ok", f"nobody else installs {OURS}")


def check_place() -> Finding:
    """Tell where our package is imported from."""
    return Finding("place", "ok", f"imported from {Path(callboard.__file__).parents[1]}")


def check_requirements() -> Iterator[Finding]:
    """Tell which versions of what callboard needs are there, extras included."""
    try:
        wanted = importlib.metadata.requires("callboard") or []
    except importlib.metadata.PackageNotFoundError:
        text = "callboard runs from its sources and is not installed"
        yield Finding("requirements", "warn", text, "make setup, or pip install callboard")
        return
    missing: dict[str, list[str]] = {}
    for line in wanted:
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        try:
            yield Finding(name, "ok", f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            if extra is None:
                step = f"pip install '{line.partition(';')[0].strip()}'"
                yield Finding(name, "fail", f"{name} is missing", step)
            else:
                missing.setdefault(extra[1], []).append(name)
    for name, packages in missing.items():
        text = f"without {', '.join(packages)}: only for callboard[{name}]"
        yield Finding(f"extra {name}", "ok", text)


def check_clocks(now: datetime) -> Finding:
    """Tell whether the wall clock can be right and the monotonic clock is fine enough."""
    if now < BEGIN:
        text = f"the wall clock shows {now:%Y-%m-%d}; logs will mislead, certificates fail"
        return Finding("clock", "warn", text, "set the clock, for instance with NTP")
    resolution = time.get_clock_info("monotonic").resolution
    if resolution > 0.01:
        text = f"the monotonic clock steps by {resolution * 1e3:.0f} ms"
        return Finding("clock", "warn", text, "use another clock source of the system")
    return Finding("clock", "ok", f"{now:%Y-%m-%d %H:%M:%S} UTC")


def check_files(soft: int) -> Finding:
    """Tell whether enough files may be open; each link is one."""
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        return Finding("files", "ok", "no limit" if soft < 0 else f"{soft:,} open files")
    status: Status = "fail" if soft < FEWEST_FILES else "warn"
    text = f"{soft:,} open files; a node may have {FILES:,} links"
    return Finding("files", status, text, "ulimit -n 8192, or LimitNOFILE=8192 in the unit")


def check_loopback() -> Finding:
    """Link two nodes over 127.0.0.1 and let one ask the other."""
    try:
        with Node("doctor") as node, Node("patient") as patient:
            patient.listen("127.0.0.1", 0)
            patient.register("echo", patient.spawn(Echo))
            echo = node.remote_actor(patient.address + "/echo", PROBE_TIME)
            took = _timed(lambda: echo.ask("hello", timeout=PROBE_TIME).result())
    except (CallboardError, OSError) as error:
        text = f"two nodes on 127.0.0.1 do not link: {one_line(str(error))}"
        step = "let the firewall pass 127.0.0.1, and see that lo is up"
        return Finding("loopback", "fail", text, step)
    return Finding("loopback", "ok", f"two nodes link, an ask takes {took * 1e3:.2f} ms")


def check_port(listen: str) -> Finding:
    """Tell whether a node could listen there."""
    host, port = parse_listen(listen)
    try:
        with Node("callboard doctor") as node:
            node.listen(host, port, insecure=True)
    except OSError as error:
        step = "choose another port, or end what holds it: ss -ltnp shows that"
        return Finding("port", "fail", f"{listen}: {error.strerror or error}", step)
    return Finding("port", "ok", f"{listen} is free")


def check_peer(address: str, access: AccessOptions) -> Finding:
    """Link with a node, and measure how long it takes to answer."""
    try:
        with access.open_node("callboard doctor") as node:
            found = node.connect(address, PROBE_TIME)
            directory = node.runtime.ref_of(found, DIRECTORY)
            name = directory.ask(Describe(), timeout=PROBE_TIME).result()
            took = _timed(lambda: directory.ask(Describe(), timeout=PROBE_TIME).result())
    except (CallboardError, OSError) as error:
        step = "see that it runs, that its port is open, and --secret-file or --tls fits"
        return Finding("peer", "fail", f"{address}: {one_line(str(error))}", step)
    return Finding("peer", "ok", f"{address} is {name}, answers in {took * 1e3:.2f} ms")


def check_seals(address: str, access: AccessOptions) -> Iterator[Finding]:
    """Tell the release of a node, and which of its links are not sealed, or need not be."""
    step = "upgrade the nodes of release 0.1, then leave allow_unsealed out"
    try:
        with access.open_node("callboard doctor") as node:
            peer = node.connect(address, PROBE_TIME)
            (link,) = (each for each in node.links() if each.peer == peer)
            yield Finding("release", "ok", f"{address} is of {release_text(link)}")
            if link.guard == "unsealed":
                text = f"the link with {address} is not sealed: a relay could speak on it"
                yield Finding("seal", "warn", text, step)
            inspector = node.runtime.ref_of(peer, INSPECTOR)
            told = inspector.ask(Inspect(0, accounts=True), timeout=PROBE_TIME).result()
    except (CallboardError, OSError):  # it may not be asked, or is of an older release
        return
    if told.allows_unsealed:
        text = f"{address} lets nodes of release 0.1 in, whose links are not sealed"
        yield Finding("seal", "warn", text, step)
    unsealed = [each.peer_name for each in told.neighbours if each.guard == "unsealed"]
    if unsealed:
        text = f"links of {address} are not sealed: {', '.join(unsealed)}"
        yield Finding("seal", "warn", text, step)


def check_logs(address: str, access: AccessOptions) -> Iterator[Finding]:
    """Tell which logs are served at an address to who asks, and what is wrong about them."""
    is_server = address.startswith(_SERVERS)
    try:
        secret = read_secret(access.secret_file)
        logs = list_logs(address, token=secret, tls=access.tls)
    except (CallboardError, LogError, OSError) as error:
        if is_server or "does not serve logs" not in str(error):  # most nodes serve none
            step = "see that it runs, and that --secret-file or --tls fits"
            yield Finding("logs", "fail", one_line(str(error)), step)
        return
    wrong, names = [], []
    for each in logs:
        try:
            log = LogReader(each, token=secret, tls=access.tls)
            names.append(f"{each.rpartition('/')[2]} ({log.start:,} to {log.end:,})")
        except (LogError, OSError) as error:
            names.append(each.rpartition("/")[2])
            wrong.append(one_line(str(error)))
    proof = "to your secret" if secret else "without a secret"
    way = "with TLS" if access.tls or address.startswith("grpc+tls") else "plainly"
    told = f"{address} serves {proof}, {way}: {', '.join(names) or 'no logs'}"
    if not logs:
        yield Finding("logs", "warn", told, "give that secret the right: logs = [PATTERN]")
    else:
        yield Finding("logs", "ok", told)
    for each in wrong:
        yield Finding("logs", "fail", each, "see the folder that is served, and its rights")
    if is_server and not secret and logs:
        text = f"{address} lets everybody of its machine read"
        yield Finding("logs", "warn", text, "give callboard log serve --permissions FILE.toml")


def check_readers(file: Path) -> Iterator[Finding]:
    """Tell which logs each named secret of a file may read and append to."""
    from callboard.operation.configuration import InvalidConfiguration
    from callboard.operation.permissions import load_permissions

    try:
        given = load_permissions(file)
    except InvalidConfiguration as error:
        for line in error.lines:
            yield Finding("readers", "fail", line, "correct it")
        return
    told, idle = [], []
    access = LinkAccess.of(None, given.secrets, given.permissions)
    for name, _ in access.keys:
        standing = None if access.permissions is None else access.permissions.admit(name, ())
        logs = () if standing is None else standing.rights.logs
        appends = () if standing is None else standing.rights.append
        told += [f"{name} may read {', '.join(logs)}"] if logs else []
        told += [f"{name} may append to {', '.join(appends)}"] if appends else []
        idle += [] if logs or appends else [name]
    yield Finding("readers", "ok", f"{file}: {'; '.join(told) or 'nobody may read a log'}")
    if idle:
        text = f"{file}: {', '.join(idle)} may read no log"
        yield Finding("readers", "warn", text, 'add logs = ["NAME"] if they should')


def check_certificate(folder: Path, now: float) -> Finding:
    """Tell whether the certificate in a folder can be used, and for how long."""
    chain, key = folder / "certificate.pem", folder / "key.pem"
    try:
        tls = Tls(chain, key if key.exists() else None, mutual=False)
        tls.for_listening()
        days = (expiry_of(chain.read_text()) - now) / _DAY
    except (TlsError, OSError, ValueError) as error:
        return Finding("certificate", "fail", one_line(str(error)), "put another one there")
    told = f"{chain} is out of date" if days < 0 else f"{chain} is good for {days:,.0f} days"
    status: Status = "fail" if days < 0 else "warn" if days < _SOON else "ok"
    step = "" if status == "ok" else "renew it; doors that run take it up by themselves"
    return Finding("certificate", status, told, step)


def _timed(act: Callable[[], object]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def report(found: Sequence[Finding]) -> str:
    """Return lines for people: what fails, what may trouble, and in one line what is fine."""
    wrong = [each for status in ("fail", "warn") for each in found if each.status == status]
    fine = [each for each in found if each.status == "ok"]
    width = max((len(each.check) for each in wrong), default=0)
    lines = [
        f"{each.status:<4}  {each.check:<{width}}  {each.text}; {each.step}" for each in wrong
    ]
    told = [each.text for each in fine if each.check in _TOLD]
    others = sum(each.check not in _TOLD for each in fine)
    if fine:
        lines.append(f"ok    {', '.join(told)}{' and ' * bool(told)}{others} more checks")
    return "\n".join(lines)
