"""Leases in etcd, for clusters on several machines without a shared database.

A name is a key under a prefix; its value is JSON. etcd counts the writes of a key since its
creation (`version`). A write is one transaction that compares this number, and reads are
linearizable. Both use the JSON gateway that every member serves (etcd's API v3, package
`etcd3gw`). etcd's own leases and locks are not used: they expire by the server's clock, and
their holder is not notified in time.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, SSLError

from callboard import locks
from callboard.kernel.errors import WrongValue
from callboard.lease.errors import (
    DatabaseReplaced,
    OutcomeUnknown,
    StateCorrupt,
    StateFull,
    StateUnavailable,
)
from callboard.lease.leases import LeaseValue, Versioned
from callboard.support import after_fork
from callboard.support.nesting import parse_json
from callboard.support.redaction import redacted

#: Seconds for a member to answer; short, because a lease is renewed every half second.
TIMEOUT: Final = 1.0

#: Prefix of keys, unless the URL has a path.
PREFIX: Final = "callboard/"

_PORT: Final = 2379

_SHAPE: Final = (
    "etcd://HOST:PORT,HOST:PORT/PREFIX, or etcds:// with ?ca=FILE&cert=FILE&key=FILE for TLS"
)

#: Part of etcd's error when its quota is used up (`mvcc: database space exceeded`).
_NO_ROOM: Final = "space exceeded"


class EtcdLeases:
    """A register in an etcd cluster; if a member does not answer, the next one is tried."""

    def __init__(self, url: str) -> None:
        """Connect to the first member that answers.

        Args:
            url: `etcd://HOST:PORT,HOST:PORT/PREFIX`; `etcds://` for TLS, with the files of the
                authority, of the own certificate and of its key as `?ca=…&cert=…&key=…`.

        Raises:
            WrongValue: the URL is malformed.
            StateUnavailable: no member answers.
        """
        self._url = url
        self._members, self._prefix = _opened(url)
        #: Index of the member that answered last.
        self._member = 0
        #: Id of the cluster, and the highest revision that it has reported.
        self._cluster, self._revision = "", 0
        self._lock = locks.lock("lease register in etcd", 562)
        after_fork.register(self, EtcdLeases._drop_copy)
        self.read("")

    def read(self, name: str) -> Versioned:
        """Return the value of a name and its version."""
        key = self._key(name)
        with self._lock:
            answer = self._ask({"compare": [], "success": [{"request_range": {"key": key}}]})
        try:
            entries = answer["responses"][0]["response_range"].get("kvs")
            version = int(entries[0]["version"]) if entries else 0
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._not_etcd(answer) from error
        return (_value_of(entries[0]), version) if entries else (None, 0)

    def write(self, name: str, value: LeaseValue, expected_version: int) -> bool:
        """Replace a value if it has the expected version; return whether it was replaced."""
        key = self._key(name)
        put = {"key": key, "value": _encoded(json.dumps(value._asdict()))}
        version = {
            "key": key,
            "target": "VERSION",
            "result": "EQUAL",
            "version": str(expected_version),
        }
        with self._lock:
            transaction = {"compare": [version], "success": [{"request_put": put}]}
            return bool(self._ask(transaction, is_write=True).get("succeeded", False))

    def is_gone(self, writer: str) -> bool:
        """Return False: etcd cannot tell whether a process on another machine has ended."""
        return False

    def again(self) -> "EtcdLeases":
        """Return the register with new connections."""
        return EtcdLeases(self._url)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for member in self._members:
                member.session.close()

    def _drop_copy(self) -> None:
        """Drop the inherited connections in a forked process."""
        for member in self._members:
            for adapter in member.session.adapters.values():
                for pool in list(adapter.poolmanager.pools._container.values()):  # noqa: SLF001
                    idle = list(pool.pool.queue) if pool.pool is not None else []
                    after_fork.drop(*(getattr(connection, "sock", None) for connection in idle))

    def _key(self, name: str) -> str:
        """Return the key of a name in the gateway's encoding."""
        return _encoded(self._prefix + name)

    def _ask(self, transaction: Mapping[str, Any], *, is_write: bool = False) -> Any:
        """Run a transaction on the first member that answers; the caller holds the lock.

        Raises:
            StateUnavailable: no member answers, and nothing was written.
            OutcomeUnknown: the value may have been written.
            DatabaseReplaced: another cluster answers, or one that lost acknowledged writes.
        """
        failure: Exception | None = None
        for _ in self._members:
            try:
                answer = self._members[self._member].transaction(dict(transaction))
            except Etcd3Exception as error:
                failure = error
                self._member = (self._member + 1) % len(self._members)
                if is_write and not _never_arrived(error):
                    raise _refused(error) from error
            except ValueError as error:  # the answer is not JSON
                raise self._not_etcd(error, is_write=is_write) from error
            else:
                self._check_cluster(answer, is_write=is_write)
                return answer
        message = f"no member of {redacted(self._url)} answers: {_text_of(failure)}"
        raise StateUnavailable(message) from failure

    def _not_etcd(self, answer: object, *, is_write: bool = False) -> Exception:
        """Return the error for an answer that is not etcd's: a write may have been applied."""
        text = f"{redacted(self._url)} answers, but not as etcd does: {str(answer):.100}"
        if is_write:
            return OutcomeUnknown(f"{text}; the value may have been written")
        return StateUnavailable(text)

    def _check_cluster(self, answer: Any, *, is_write: bool) -> None:
        """Raise `DatabaseReplaced`, once, if the cluster is another one or lost writes."""
        try:
            cluster, revision = (
                answer["header"]["cluster_id"],
                int(answer["header"]["revision"]),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise self._not_etcd(answer, is_write=is_write) from error
        last_cluster, last_revision = self._cluster, self._revision
        self._cluster, self._revision = cluster, revision
        if last_cluster and (last_cluster != cluster or last_revision > revision):
            message = (
                f"{redacted(self._url)} was restored to an older state, or is another cluster"
                f" (revision {last_revision} of {last_cluster}, now {revision} of {cluster}):"
                " leases start anew"
            )
            raise DatabaseReplaced(message)


def _opened(url: str) -> tuple[list[Etcd3Client], str]:
    """Return a client for each member of a URL, and the prefix of keys.

    Raises:
        WrongValue: the URL is malformed.
    """
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    places = [_place_of(place, url) for place in parts.netloc.split(",")]
    problem = ""
    if unknown := sorted(options.keys() - {"ca", "cert", "key"}):
        problem = f"has the unknown option {unknown[0]!r}"
    elif options and parts.scheme != "etcds":
        problem = "names TLS files, but etcd:// does not use TLS"
    elif ("cert" in options) != ("key" in options):
        problem = "names only one of cert and key, which go together"
    if problem:
        message = f"{redacted(url)!r} {problem}: write {_SHAPE}"
        raise WrongValue(message)
    protocol: Literal["http", "https"] = "https" if parts.scheme == "etcds" else "http"
    files = options.get("ca"), options.get("key"), options.get("cert")
    members = [
        Etcd3Client(host, port, protocol, *files, timeout=TIMEOUT, api_path="/v3/")
        for host, port in places
    ]
    for member in members:
        member.session.trust_env = False  # ignore proxies, which are for the web
    path = unquote(parts.path).strip("/")
    return members, f"{path}/" if path else PREFIX


def _place_of(place: str, url: str) -> tuple[str, int]:
    """Return the host and the port of a member."""
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or "@" in place:
        message = f"{redacted(url)!r} is not an address of etcd: write {_SHAPE}"
        raise WrongValue(message)
    return host, _PORT if port is None else port


def _encoded(text: str) -> str:
    """Return a text in the gateway's encoding of bytes."""
    return base64.b64encode(text.encode()).decode()


def _value_of(entry: Mapping[str, str]) -> LeaseValue:
    """Decode the value of an entry.

    Raises:
        StateCorrupt: another program wrote it.
    """
    try:
        value = parse_json(base64.b64decode(entry.get("value", "")))
        writer, number, text = value["writer"], value["number"], value["text"]
    except (ValueError, KeyError, TypeError) as error:
        key = base64.b64decode(entry.get("key", "")).decode(errors="replace")
        message = f"the key {key!r} in etcd is not a lease: use a separate prefix for leases"
        raise StateCorrupt(message) from error
    return LeaseValue(str(writer), int(number), str(text))


def _never_arrived(error: Etcd3Exception) -> bool:
    """Return whether no connection was made, so that nothing can have been written."""
    cause = error.__context__
    reason = getattr(cause.args[0] if cause and cause.args else None, "reason", None)
    return isinstance(reason, NewConnectionError | ConnectTimeoutError | SSLError)


def _refused(error: Etcd3Exception) -> Exception:
    """Return the error of a write that a member refused or did not acknowledge."""
    text = _text_of(error)
    if _NO_ROOM in text:
        return StateFull(f"etcd: {text}: compact and defragment it, or raise its quota")
    if type(error) is Etcd3Exception:  # the request itself was refused
        return StateUnavailable(f"etcd: {text}")
    return OutcomeUnknown(f"etcd: {text}; the value may have been written")


def _text_of(error: Exception | None) -> str:
    """Return the text of an error in one line."""
    return " ".join((getattr(error, "detail_text", None) or str(error)).split())[:300]
