"""The guard of every port that speaks HTTP: by which names it is reached, and for which pages.

A page of another site can make a browser send requests to a port of this machine. With DNS
rebinding the site's own name leads here, and the page may then read the answers as well. So a
request has to name one of the port's own hosts (`Host`): an address, `localhost`, the name of
the machine, or one of `hosts`. If a page sends it (`Origin`, `Sec-Fetch-Site`), the page has to
be of that host too.

Sans-IO: every HTTP server of the package calls `HostGuard.refusal` before it looks at a path.
"""

import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from callboard.support.dataclass import dataclass

#: An entry of `hosts` that stands for every name.
ANY_HOST: Final = "*"

_EVERY_INTERFACE: Final = ("", "0.0.0.0", "::")  # noqa: S104  # compared, not bound
#: A host as browsers send it: a name or an address, and perhaps a port. No user, no path.
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]@/\\?#:,;%]+)(?::[0-9]{1,5})?")
_OWN_SITES: Final = ("", "none", "same-origin")


class Asking(NamedTuple):
    """The parts of a request that the guard judges.

    Attributes:
        hosts: every `Host` header; of HTTP/2 the authority.
        origins: every `Origin` header: the site of the page that asks.
        fetched: `Sec-Fetch-Site`; empty if it is missing.
        target: the target of the request line; an absolute one names a host as well.
        needs_host: whether the version of HTTP demands `Host`. No browser speaks an older one.
    """

    hosts: Sequence[str]
    origins: Sequence[str] = ()
    fetched: str = ""
    target: str = "/"
    needs_host: bool = True

    @property
    def is_browser(self) -> bool:
        """Whether a browser sent the request for a page, by a method other than GET."""
        return bool(self.origins or self.fetched)


class Refusal(NamedTuple):
    """The status and the text with which a request is refused."""

    status: HTTPStatus
    text: str


@dataclass(frozen=True, slots=True)
class HostGuard:
    """The hosts of one port.

    Attributes:
        hosts: further names, in lower case, each for every port or with its port; `*` for all.
            Behind a proxy that sends a `Host` of its own these are both: that one, and the name
            that browsers know.
        any_address: whether any IP address is a name of the port: other machines reach it,
            perhaps through a translation of addresses. No name leads a browser to send one.
        own: names that the port has without being told.
        option: the option that names further hosts, as the text of a refusal has it.
    """

    hosts: Collection[str] = ()
    any_address: bool = False
    own: Collection[str] = ()
    option: str = "hosts"

    @classmethod
    def of_port(
        cls, address: str, hosts: Iterable[str] = (), *, option: str = "hosts"
    ) -> "HostGuard":
        """Return the guard of a port that is bound to an address or a name."""
        own = {socket.gethostname().lower(), _plain_name(address)} - {*_EVERY_INTERFACE}
        further = frozenset(host.lower() for host in hosts)
        return cls(further, not is_loopback(address), frozenset(own), option)

    @property
    def names(self) -> frozenset[str]:
        """All names of the port, its own among them."""
        return frozenset((*self.hosts, *self.own))

    @property
    def is_open(self) -> bool:
        """Whether every name is one of the port."""
        return ANY_HOST in self.hosts

    def knows(self, host: str) -> bool:
        """Return whether the port may be reached by a host, which may have a port."""
        host = host.lower()
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        if self.is_open or host in self.hosts:
            return True
        name = _plain_name(match[1])
        if name in self.hosts or name in self.own:
            return True
        return is_loopback(name) or (self.any_address and _address(name) is not None)

    def refusal(
        self, asking: Asking, *, is_link: bool = False, programs: bool = False
    ) -> Refusal | None:
        """Return why a request is refused; None if it is not.

        `is_link`: the request may come from a link on a page of another site. `programs`: see
        `host_refusal`.
        """
        if (refused := self.host_refusal(asking, programs=programs)) is not None:
            return refused
        host = asking.hosts[0] if asking.hosts else ""
        if not self._is_own_page(host, asking, is_link=is_link):
            text = "pages of other sites get nothing here; open this port's own address"
            return Refusal(HTTPStatus.FORBIDDEN, text)
        return None

    def host_refusal(self, asking: Asking, *, programs: bool = False) -> Refusal | None:
        """Return why the host of a request is refused; None if it is not.

        `programs`: a request that no page sends may come by any name. It holds for POST and for
        WebSocket, with which browsers always send `Origin`, and not for GET.
        """
        if len(asking.hosts) > 1 or len(asking.origins) > 1:
            return Refusal(HTTPStatus.BAD_REQUEST, "send Host and Origin once")
        if not asking.hosts and (asking.needs_host or asking.is_browser):
            return Refusal(HTTPStatus.BAD_REQUEST, "the header Host is missing")
        if self.is_open or (programs and not asking.is_browser):
            return None
        names = (*asking.hosts, *_authority(asking.target))
        unknown = [name for name in names if not self.knows(name)]
        if not unknown:
            return None
        text = f"the host {unknown[0][:200]!r} is not one of this port"
        step = f"use an address of it, or name the host in {self.option}"
        return Refusal(HTTPStatus.FORBIDDEN, f"{text}; {step}")

    def _is_own_page(self, host: str, asking: Asking, *, is_link: bool) -> bool:
        """Return whether no page of another site asks."""
        if asking.origins:
            try:
                site = urlsplit(asking.origins[0]).netloc.lower()
            except ValueError:
                return False
            # a proxy may ask with another Host; then the browser's own word is needed as well
            is_named = site in self.hosts and asking.fetched == "same-origin"
            if site != host.lower() and not is_named:
                return False
        return asking.fetched in _OWN_SITES or is_link


def is_loopback(name: str) -> bool:
    """Return whether a name or an address leads to this machine only."""
    name = _plain_name(name)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _plain_name(name: str) -> str:
    """Return a name in lower case, without brackets and the dot of a full name."""
    return name.lower().strip("[]").removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _authority(target: str) -> list[str]:
    """Return the host in a target with a scheme, as requests to a proxy have it."""
    if target.startswith("/") or "://" not in target:
        return []
    return [target.partition("://")[2].partition("/")[0].partition("?")[0]]
