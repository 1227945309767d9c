"""What each user may publish and subscribe: lists of topic filters.

An entry of a list is `publish FILTER`, `subscribe FILTER`, or `FILTER` for both; `%u` in it
stands for the user's name and `%c` for the client id. An entry of `deny` stands above all of
`allow`; what no entry allows is refused. Rules for the user `*` hold for everybody.

A subscription is granted if one `allow` covers all of it; topics that `deny` names are then
left out of what is delivered.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.topic import is_valid_filter, matches, split_share

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
        msg = f"{text!r} holds no filter; write 'publish FILTER', 'subscribe FILTER' or FILTER"
        raise ValueError(msg)
    return verbs, topic_filter


def covers(wide: str, narrow: str) -> bool:
    """Whether a filter matches every topic that another one matches."""
    if narrow.startswith("$") and wide[:1] in {"+", "#"}:
        return False
    levels, inner = wide.split("/"), narrow.split("/")
    for position, level in enumerate(levels):
        if level == "#":
            return True
        if position == len(inner) or inner[position] == "#":
            return False
        if level not in {"+", inner[position]}:
            return False
    return len(levels) == len(inner)


class TopicAccess:
    """The rules of one client; an `Access` of its link."""

    __slots__ = ("_allow", "_deny")

    def __init__(self, entries: Iterable[AclEntry], user: str, client_id: str) -> None:
        """Take the entries that are about a user.

        Args:
            entries: of everybody.
            user: empty for a client without a name.
            client_id: for `%c`.
        """
        self._allow: dict[str, list[str]] = {verb: [] for verb in _VERBS}
        self._deny: dict[str, list[str]] = {verb: [] for verb in _VERBS}
        for entry in entries:
            if entry.user in {EVERYBODY, user}:
                self._add(self._allow, entry.allow, user, client_id)
                self._add(self._deny, entry.deny, user, client_id)

    @staticmethod
    def _add(
        table: dict[str, list[str]], rules: Iterable[str], user: str, client_id: str
    ) -> None:
        names = {"%u": user, "%c": client_id}
        for rule in rules:
            verbs, topic_filter = parse_rule(rule)
            used = set(_MARK.findall(topic_filter))
            # A name with a wildcard or slash in it would widen the rule, so it gives nothing.
            if any(not names[mark] or set(names[mark]) & set("+#/") for mark in used):
                continue
            plain = _MARK.sub(lambda found: names[found[0]], topic_filter)
            for verb in verbs:
                table[verb].append(plain)

    def _may(self, verb: str, topic: str) -> bool:
        return any(matches(topic, each) for each in self._allow[verb]) and not any(
            matches(topic, each) for each in self._deny[verb]
        )

    def may_publish(self, topic: str) -> bool:
        """Whether this client may publish there."""
        return self._may("publish", topic)

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the QoS, or *not authorized*."""
        _, plain = split_share(topic_filter)
        allowed = any(covers(each, plain) for each in self._allow["subscribe"])
        if allowed and not any(covers(each, plain) for each in self._deny["subscribe"]):
            return qos
        return ReasonCode.NOT_AUTHORIZED

    def may_receive(self, topic: str) -> bool:
        """Whether messages of a topic may go to this client."""
        return self._may("subscribe", topic)


class TenantAccess:
    """Keeps a client within `/tenants/TENANT/`, below what else holds for it."""

    __slots__ = ("_inner", "_prefix")

    def __init__(self, tenant: str, inner: TopicAccess | None = None) -> None:
        self._prefix = f"/tenants/{tenant}/"
        self._inner = inner

    def may_publish(self, topic: str) -> bool:
        """Whether this client may publish there."""
        return topic.startswith(self._prefix) and (
            self._inner is None or self._inner.may_publish(topic)
        )

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the QoS, or *not authorized*."""
        _, plain = split_share(topic_filter)
        if not plain.startswith(self._prefix):
            return ReasonCode.NOT_AUTHORIZED
        return qos if self._inner is None else self._inner.may_subscribe(topic_filter, qos)

    def may_receive(self, topic: str) -> bool:
        """Whether messages of a topic may go to this client."""
        return topic.startswith(self._prefix) and (
            self._inner is None or self._inner.may_receive(topic)
        )
