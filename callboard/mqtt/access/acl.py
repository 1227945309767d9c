"""Authorization: what each client may publish and subscribe, by lists and hooks.

An entry of a list is `publish FILTER`, `subscribe FILTER`, or `FILTER` for both; `%u` in it
stands for the user's name and `%c` for the client id. An entry of `deny` stands above all of
`allow`; what no entry allows is refused. Rules for the user `*` hold for everybody.

A subscription is granted if one `allow` covers all of it; topics that `deny` names are then
left out of what is delivered.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from callboard.mqtt.access.admission import call_function
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import is_valid_filter, matches, split_share

EVERYBODY: Final = "*"
_VERBS: Final = ("publish", "subscribe")
_MARK: Final = re.compile("%[uc]")


@dataclass(frozen=True, slots=True)
class AclEntry:
    """What one user, or everybody, is allowed and denied."""

    user: str
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


def parse_rule(text: str) -> tuple[tuple[str, ...], str]:
    """Return the verbs and the filter of an entry of a list.

    Raises:
        ValueError: the filter is none.
    """
    verb, space, rest = text.partition(" ")
    verbs, topic_filter = (
        ((verb,), rest.strip()) if space and verb in _VERBS else (_VERBS, text)
    )
    if not is_valid_filter(topic_filter):
        message = (
            f"{text!r} holds no filter; write 'publish FILTER', 'subscribe FILTER' or FILTER"
        )
        raise ValueError(message)
    return verbs, topic_filter


def is_covered(narrow: str, wide: str) -> bool:
    """Whether another filter matches every topic that a filter matches."""
    is_longer = wide.count("/") > narrow.count("/")
    if narrow.endswith("#") and (is_longer or not wide.endswith("#")):
        return False
    return matches(narrow, wide)


def _by_verb(rules: Iterable[str], names: dict[str, str]) -> dict[str, list[str]]:
    """Return the filters of rules by verb, with a client's names in place of marks."""
    table: dict[str, list[str]] = {verb: [] for verb in _VERBS}
    for rule in rules:
        verbs, topic_filter = parse_rule(rule)
        used = set(_MARK.findall(topic_filter))
        # A name with a wildcard or slash in it would widen the rule, so it gives nothing.
        if any(not names[mark] or set(names[mark]) & set("+#/") for mark in used):
            continue
        plain = _MARK.sub(lambda found: names[found[0]], topic_filter)
        for verb in verbs:
            table[verb].append(plain)
    return table


@dataclass(frozen=True, slots=True)
class Client:
    """A client that is in, for hooks.

    Attributes:
        client_id: of the session.
        username: None if it gave none.
        address: where it comes from.
    """

    client_id: str
    username: str | None
    address: str


#: Called with a client, a filter and the QoS; returns the QoS or a reason code, or None.
SubscribeHook = Callable[[Client, str, int], int | None]


class Ruled:
    """The access of a client that came over the network; a reload makes another one.

    One that has a tenant is kept within `/tenants/TENANT/`, below what else holds for it.
    """

    __slots__ = ("_allow", "_client", "_deny", "_has_rules", "_hook", "_prefix", "is_open")

    def __init__(
        self,
        client: Client,
        entries: Collection[AclEntry] = (),
        user: str = "",
        hook: SubscribeHook | None = None,
        tenant: str = "",
    ) -> None:
        """Take the entries that are about a client.

        Args:
            client: for `%c` and the hook.
            entries: of everybody; without any all topics are allowed.
            user: empty for a client without a name.
            hook: is asked about what the entries grant.
            tenant: of the client.
        """
        self._client = client
        self._hook = hook
        self._prefix = f"/tenants/{tenant}/" if tenant else ""
        #: Whether no topic is closed to this client.
        self.is_open = not entries and not tenant
        self._has_rules = bool(entries)
        names = {"%u": user, "%c": client.client_id}
        about = [each for each in entries if each.user in {EVERYBODY, user}]
        self._allow = _by_verb((rule for each in about for rule in each.allow), names)
        self._deny = _by_verb((rule for each in about for rule in each.deny), names)

    def _may(self, verb: str, name: str, fits: Callable[[str, str], bool] = matches) -> bool:
        """Return whether a verb is allowed on a topic or filter, and not denied."""
        if not name.startswith(self._prefix):
            return False
        if not self._has_rules:
            return True
        return any(fits(name, each) for each in self._allow[verb]) and not any(
            fits(name, each) for each in self._deny[verb]
        )

    def may_publish(self, topic: str) -> bool:
        """Whether this client may publish there."""
        return self._may("publish", topic)

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the QoS or a reason code; the hook is asked about what the rules grant."""
        _, plain = split_share(topic_filter)
        if not self._may("subscribe", plain, is_covered):
            return ReasonCode.NOT_AUTHORIZED
        if self._hook is None:
            return qos
        what = f"the subscribe hook for client {self._client.client_id!r}"
        answer = call_function(what, self._hook, self._client, topic_filter, qos)
        return qos if answer is None else int(answer)

    def may_receive(self, topic: str) -> bool:
        """Whether messages of a topic may go to this client."""
        return self._may("subscribe", topic)
