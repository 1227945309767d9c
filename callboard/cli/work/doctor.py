"""Implementation of `callboard doctor`: checks of this machine for problems of a node."""

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
from callboard.cli.cli_error import one_line
from callboard.cli.node import release_text
from callboard.cli.options import AccessOptions, read_secret
from callboard.cli.own_node import parse_listen
from callboard.commitlog import LogError, LogReader
from callboard.commitlog.errors import LogsNotServed
from callboard.commitlog.reader import list_logs
from callboard.kernel.access import LinkAccess
from callboard.kernel.actors import Actor, handler
from callboard.kernel.errors import CallboardError, TlsError
from callboard.kernel.tables import Describe, Inspect
from callboard.kernel.topology import DIRECTORY, INSPECTOR, endpoint_text, parse_node_address
from callboard.node import Node
from callboard.tls.contexts import Tls
from callboard.tls.revocation import expiry_of

#: Our package; another distribution may install a package of the same name over it.
OURS: Final = "callboard"

#: Open files that a node may need, for its limit of links. With fewer, connections fail under
#: load.
FILES: Final = 4_096

#: Open files that even a small cluster with its logs needs.
FEWEST_FILES: Final = 256

#: Timeout of a test link or reply, in seconds.
PROBE_TIME: Final = 5.0

#: A time before this one is certainly wrong: callboard is younger.
BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)

#: Checks whose success is printed; the others are only counted, except with --json.
_TOLD: Final = (
    *("python", "place", "loopback", "port", "peer", "release", "logs", "readers"),
    "certificate",
)
#: Prefixes of the addresses of log servers.
_SERVERS: Final = ("grpc://", "grpc+tls://")
_DAY: Final = 86_400.0
#: Days before its expiry from which on a certificate is reported.
_SOON: Final = 14

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check; `step` is the remedy, "" if none is needed."""

    check: str
    status: Status
    text: str
    step: str = ""


class Echo(Actor):
    """Returns each message, to test a link."""

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
    """Run all checks.

    Args:
        listen: `HOST:PORT` that must be free; None to skip this check.
        peers: addresses of nodes and log servers to contact.
        access: credentials for them.
        permissions: a file with rights to read logs; None to skip this check.
        certificates: a folder with a server's certificate; None to skip this
            check.
    """
    if listen is not None:
        parse_listen(listen)
    read_secret(access.secret_file)
    peers = [
        peer if peer.startswith(_SERVERS) else endpoint_text(parse_node_address(peer))
        for peer in peers
    ]
    findings = [
        check_python(sys.version_info[:3]),
        *check_conflicts(importlib.metadata.distributions()),
        check_place(),
        *check_requirements(),
        check_clocks(datetime.now(UTC)),
        check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        check_loopback(),
    ]
    if listen is not None:
        findings.append(check_port(listen))
    if permissions is not None:
        findings += check_readers(permissions)
    if certificates is not None:
        findings.append(check_certificate(certificates, datetime.now(UTC).timestamp()))
    for peer in peers:
        if peer.startswith(_SERVERS):
            findings += check_logs(peer, access)
            continue
        findings.append(check_peer(peer, access))
        if findings[-1].status == "ok":
            findings += check_seals(peer, access)
            findings += check_logs(peer, access)
    return findings


def check_python(version: tuple[int, ...]) -> Finding:
    """Check the version of the interpreter."""
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return Finding("python", "ok", f"Python {text}")
    step = "install Python 3.11 or newer"
    return Finding("python", "fail", f"Python {text} is too old", step)


def check_conflicts(
    distributions: Iterable[importlib.metadata.Distribution],
) -> Iterator[Finding]:
    """Check for other distributions that install files into our package."""
    clean = True
    for distribution in distributions:
        name = distribution.metadata["Name"] or "?"
        files = distribution.files or ()
        if name.lower() != OURS and any(Path(str(file)).parts[0] == OURS for file in files):
            clean = False
            text = f"{name} {distribution.version} overwrites files of {OURS}"
            step = f"pip uninstall {name}, then install callboard again"
            yield Finding("packages", "fail", text, step)
    if clean:
        yield Finding("packages", "ok", f"no other package installs {OURS}")


def check_place() -> Finding:
    """Report the folder that our package is imported from."""
    return Finding("place", "ok", f"imported from {Path(callboard.__file__).parents[1]}")


def check_requirements() -> Iterator[Finding]:
    """Check the required packages, extras included."""
    try:
        requirements = importlib.metadata.requires("callboard") or []
    except importlib.metadata.PackageNotFoundError:
        text = "callboard runs from its sources and is not installed"
        yield Finding("requirements", "warn", text, "make setup, or pip install ./callboard")
        return
    missing: dict[str, list[str]] = {}
    for line in requirements:
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
    """Check the wall clock, and the resolution of the monotonic clock."""
    if now < BEGIN:
        text = f"the wall clock shows {now:%Y-%m-%d}; logs are wrong and certificates fail"
        return Finding("clock", "warn", text, "set the clock, for instance with NTP")
    resolution = time.get_clock_info("monotonic").resolution
    if resolution > 0.01:
        text = f"the monotonic clock steps by {resolution * 1e3:.0f} ms"
        return Finding("clock", "warn", text, "use another clock source of the system")
    return Finding("clock", "ok", f"{now:%Y-%m-%d %H:%M:%S} UTC")


def check_files(soft: int) -> Finding:
    """Check the limit of open files; each link is one."""
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        return Finding("files", "ok", "no limit" if soft < 0 else f"{soft:,} open files")
    status: Status = "fail" if soft < FEWEST_FILES else "warn"
    text = f"{soft:,} open files; a node may have {FILES:,} links"
    return Finding("files", status, text, "ulimit -n 8192, or LimitNOFILE=8192 in the unit")


def check_loopback() -> Finding:
    """Link two nodes over 127.0.0.1 and send an ask."""
    try:
        with Node("doctor") as node, Node("patient") as patient:
            patient.listen("127.0.0.1", 0)
            patient.register("echo", patient.spawn(Echo))
            echo = node.remote_actor(patient.address + "/echo", PROBE_TIME)
            seconds = _timed(lambda: echo.ask("hello", timeout=PROBE_TIME).result())
    except (CallboardError, OSError) as error:
        text = f"two nodes on 127.0.0.1 do not link: {one_line(str(error))}"
        step = "permit 127.0.0.1 in the firewall, and check that lo is up"
        return Finding("loopback", "fail", text, step)
    return Finding("loopback", "ok", f"two nodes link, an ask takes {seconds * 1e3:.2f} ms")


def check_port(listen: str) -> Finding:
    """Check that a node could listen on a port."""
    host, port = parse_listen(listen)
    try:
        with Node("callboard doctor") as node:
            node.listen(host, port, insecure=True)
    except OSError as error:
        step = "choose another port, or end the program that uses it (see ss -ltnp)"
        return Finding("port", "fail", f"{listen}: {error.strerror or error}", step)
    return Finding("port", "ok", f"{listen} is free")


def check_peer(address: str, access: AccessOptions) -> Finding:
    """Link with a node, and measure the time of its reply."""
    try:
        with access.open_node("callboard doctor") as node:
            peer = node.connect(address, PROBE_TIME)
            directory = node.context.ref_of(peer, DIRECTORY)
            name = directory.ask(Describe(), timeout=PROBE_TIME).result()
            seconds = _timed(lambda: directory.ask(Describe(), timeout=PROBE_TIME).result())
    except (CallboardError, OSError) as error:
        step = "check that it runs, that its port is open, and --secret-file or --tls"
        return Finding("peer", "fail", f"{address}: {one_line(str(error))}", step)
    return Finding("peer", "ok", f"{address} is {name}, answers in {seconds * 1e3:.2f} ms")


def check_seals(address: str, access: AccessOptions) -> Iterator[Finding]:
    """Report the release of a node, and its links without seals."""
    step = "upgrade the nodes of release 0.1, then remove allow_unsealed"
    try:
        with access.open_node("callboard doctor") as node:
            peer = node.connect(address, PROBE_TIME)
            (link,) = (item for item in node.links() if item.peer == peer)
            yield Finding("release", "ok", f"{address} is of {release_text(link)}")
            if link.guard == "unsealed":
                text = f"the link with {address} is not sealed: a relay could change messages"
                yield Finding("seal", "warn", text, step)
            inspector = node.context.ref_of(peer, INSPECTOR)
            inspection = inspector.ask(Inspect(0, accounts=True), timeout=PROBE_TIME).result()
    except (CallboardError, OSError):  # not permitted, or an older release
        return
    if inspection.allows_unsealed:
        text = f"{address} accepts nodes of release 0.1, whose links are not sealed"
        yield Finding("seal", "warn", text, step)
    unsealed = [item.peer_name for item in inspection.neighbours if item.guard == "unsealed"]
    if unsealed:
        text = f"links of {address} are not sealed: {', '.join(unsealed)}"
        yield Finding("seal", "warn", text, step)


def check_logs(address: str, access: AccessOptions) -> Iterator[Finding]:
    """Check the logs that an address serves to these credentials."""
    is_server = address.startswith(_SERVERS)
    try:
        secret = read_secret(access.secret_file)
        logs = list_logs(address, token=secret, tls=access.tls)
    except LogsNotServed:  # as most nodes
        return
    except (CallboardError, LogError, OSError) as error:
        step = "check that it runs, and --secret-file or --tls"
        yield Finding("logs", "fail", one_line(str(error)), step)
        return
    errors, names = [], []
    for item in logs:
        try:
            log = LogReader(item, token=secret, tls=access.tls)
            names.append(f"{item.rpartition('/')[2]} ({log.start:,} to {log.end:,})")
        except (LogError, OSError) as error:
            names.append(item.rpartition("/")[2])
            errors.append(one_line(str(error)))
    proof = "to your secret" if secret else "without a secret"
    transport = "with TLS" if access.tls or address.startswith("grpc+tls") else "plainly"
    summary = f"{address} serves {proof}, {transport}: {', '.join(names) or 'no logs'}"
    if not logs:
        yield Finding("logs", "warn", summary, "grant that secret the right: logs = [PATTERN]")
    else:
        yield Finding("logs", "ok", summary)
    for item in errors:
        yield Finding("logs", "fail", item, "check the served folder, and its permissions")
    if is_server and not secret and logs:
        text = f"{address} permits reading to all users of its machine"
        yield Finding("logs", "warn", text, "use callboard log serve --permissions FILE.toml")


def check_readers(file: Path) -> Iterator[Finding]:
    """Report the logs that each named secret in a file may read and append to."""
    from callboard.operation.configuration import InvalidConfiguration
    from callboard.operation.permissions import load_permissions

    try:
        permissions = load_permissions(file)
    except InvalidConfiguration as error:
        for line in error.lines:
            yield Finding("readers", "fail", line, "correct it")
        return
    texts, idle = [], []
    access = LinkAccess.of(None, permissions.secrets, permissions.permissions)
    for name, _ in access.keys:
        rights = access.rights_of(name)
        logs, appends = ((), ()) if rights is None else (rights.logs, rights.append)
        texts += [f"{name} may read {', '.join(logs)}"] if logs else []
        texts += [f"{name} may append to {', '.join(appends)}"] if appends else []
        idle += [] if logs or appends else [name]
    yield Finding("readers", "ok", f"{file}: {'; '.join(texts) or 'no secret may read a log'}")
    if idle:
        text = f"{file}: {', '.join(idle)} may read no log"
        yield Finding("readers", "warn", text, 'add logs = ["NAME"] if they should')


def check_certificate(folder: Path, now: float) -> Finding:
    """Check the certificate in a folder, and its expiry."""
    chain, key = folder / "certificate.pem", folder / "key.pem"
    try:
        tls = Tls(chain, key if key.exists() else None, mutual=False)
        tls.for_listening()
        days = (expiry_of(chain.read_text()) - now) / _DAY
    except (TlsError, OSError, ValueError) as error:
        return Finding("certificate", "fail", one_line(str(error)), "put another one there")
    text = f"{chain} has expired" if days < 0 else f"{chain} is valid for {days:,.0f} days"
    status: Status = "fail" if days < 0 else "warn" if days < _SOON else "ok"
    step = "" if status == "ok" else "renew it; running servers reload it"
    return Finding("certificate", status, text, step)


def _timed(act: Callable[[], object]) -> float:
    start = time.monotonic()
    act()
    return time.monotonic() - start


def report(findings: Sequence[Finding]) -> str:
    """Return lines for people: failures, warnings, and one line for the successes."""
    problems = [
        finding
        for status in ("fail", "warn")
        for finding in findings
        if finding.status == status
    ]
    successes = [finding for finding in findings if finding.status == "ok"]
    width = max((len(finding.check) for finding in problems), default=0)
    lines = [
        f"{finding.status:<4}  {finding.check:<{width}}  {finding.text}; {finding.step}"
        for finding in problems
    ]
    texts = [finding.text for finding in successes if finding.check in _TOLD]
    rest = sum(finding.check not in _TOLD for finding in successes)
    if successes:
        lines.append(f"ok    {', '.join(texts)}{' and ' * bool(texts)}{rest} more checks")
    return "\n".join(lines)
