"""The guard of HTTP ports: refuses requests with other hosts, and from pages of other sites.

A page of another site can make a browser send requests to a port of this machine. With DNS
rebinding, the name of that site resolves to this machine, and then the page can read the
answers, too. Therefore the `Host` of a request must be one of the port's hosts: an address,
`localhost`, the name of the machine, or one of `hosts`. If a page sends the request (`Origin`,
`Sec-Fetch-Site`), the page must be of the same host.

Sans-IO: every HTTP server of callboard calls `HostGuard.refusal` before it reads the path.
"""

import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from callboard.support.dataclass import dataclass

#: An entry of `hosts` that allows every name.
ANY_HOST: Final = "*"

_EVERY_INTERFACE: Final = ("", "0.0.0.0", "::")  # noqa: S104  # compared, not bound
#: A host as browsers send it: a name or an address, with an optional port. No user, no path.
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]@/\\?#:,;%]+)(?::[0-9]{1,5})?")
_OWN_SITES: Final = ("", "none", "same-origin")


class Asking(NamedTuple):
    """The parts of a request that the guard checks.

    Attributes:
        hosts: all `Host` headers; for HTTP/2 the authority.
        origins: all `Origin` headers: the site of the page that sends the request.
        fetched: `Sec-Fetch-Site`; empty if it is missing.
        target: the target of the request line; an absolute one has a host, too.
        needs_host: whether the version of HTTP requires `Host`. Browsers use no older one.
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
    """The status and the text of the answer to a refused request."""

    status: HTTPStatus
    text: str


@dataclass(frozen=True, slots=True)
class HostGuard:
    """The hosts of one port.

    Attributes:
        hosts: more names, in lower case, each with or without a port; `*` for all. If a proxy
            sends its own `Host`, both are needed: this one, and the name that browsers use.
        any_address: whether every IP address is allowed. It is True if other machines can reach
            the port, because address translation may change the address. DNS rebinding needs a
            name, not an address.
        own: names that are always allowed.
        option: name of the option for `hosts`, for error texts.
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
        names = frozenset(host.lower() for host in hosts)
        return cls(names, not is_loopback(address), frozenset(own), option)

    @property
    def names(self) -> frozenset[str]:
        """All names of the port: `hosts` and `own`."""
        return frozenset((*self.hosts, *self.own))

    @property
    def is_open(self) -> bool:
        """Whether every host is allowed."""
        return ANY_HOST in self.hosts

    def knows(self, host: str) -> bool:
        """Return whether a host, with or without a port, is allowed."""
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
        """Return the reason to refuse a request; None to answer it.

        Args:
            asking: the request.
            is_link: whether the request may come from a link on a page of another site.
            programs: see `host_refusal`.
        """
        if (refusal := self.host_refusal(asking, programs=programs)) is not None:
            return refusal
        host = asking.hosts[0] if asking.hosts else ""
        if not self._is_own_page(host, asking, is_link=is_link):
            text = "pages of other sites get nothing here; open this port's own address"
            return Refusal(HTTPStatus.FORBIDDEN, text)
        return None

    def host_refusal(self, asking: Asking, *, programs: bool = False) -> Refusal | None:
        """Return the reason to refuse a request because of its host; None without one.

        Args:
            asking: the request.
            programs: whether a request that no page sends may have any host. Set it only for
                POST and WebSocket: for these, browsers always send `Origin`.
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
        step = f"use one of its addresses, or add the host to {self.option}"
        return Refusal(HTTPStatus.FORBIDDEN, f"{text}; {step}")

    def _is_own_page(self, host: str, asking: Asking, *, is_link: bool) -> bool:
        """Return whether the request is from a page of this host, or from no page."""
        if asking.origins:
            try:
                site = urlsplit(asking.origins[0]).netloc.lower()
            except ValueError:
                return False
            # The host differs if a proxy sends its own name. Then the browser must confirm that
            # the page is of the same site.
            is_named = site in self.hosts and asking.fetched == "same-origin"
            if site != host.lower() and not is_named:
                return False
        return asking.fetched in _OWN_SITES or is_link


def is_loopback(name: str) -> bool:
    """Return whether a name or an address is a loopback one, which stays on this machine."""
    name = _plain_name(name)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _plain_name(name: str) -> str:
    """Return a name in lower case, without brackets and without a final dot."""
    return name.lower().strip("[]").removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _authority(target: str) -> list[str]:
    """Return the host of an absolute target, which requests to a proxy have."""
    if target.startswith("/") or "://" not in target:
        return []
    return [target.partition("://")[2].partition("/")[0].partition("?")[0]]
