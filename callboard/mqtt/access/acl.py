"""Authorization: the topics that each client may publish and subscribe, by lists and hooks.

An entry of a list is `publish FILTER`, `subscribe FILTER`, or `FILTER` for both. In it `%u` is
replaced by the user's name and `%c` by the client id. The words of mosquitto have the meaning
that they have there: `write`, `read`, `readwrite`, the prefixes `topic` and `pattern`, and
`deny` in a deny list. A `deny` entry overrides all `allow` entries. Topics without an entry are
refused. Rules for the user `*` apply to all users.

A subscription is granted if one `allow` covers all of it. Messages of topics that a `deny`
entry names are then not delivered.
"""

import re
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from callboard.mqtt.access.admission import call_function
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import (
    SHARE,
    check_filter,
    matches,
    split_share,
)
from callboard.support.dataclass import dataclass

EVERYBODY: Final = "*"
_VERBS: Final = ("publish", "subscribe")
#: The operations of each verb; the last four verbs are mosquitto's.
MEANING: Final = {
    "publish": _VERBS[:1],
    "subscribe": _VERBS[1:],
    "write": _VERBS[:1],
    "read": _VERBS[1:],
    "readwrite": _VERBS,
    "deny": _VERBS,
}
#: Prefixes of the verb in mosquitto's files.
_KINDS: Final = ("topic", "pattern")
WORDS: Final = (*MEANING, *_KINDS, "user")
_MARK: Final = re.compile("%[uc]")
#: A text that looks like a placeholder and is not one.
_NO_MARK: Final = re.compile(r"%(?![uc](?!\w))[\w{%]\w*|\$\{")
#: A keyword that is separated from the filter by something other than a space.
_NO_SPACE: Final = re.compile(rf"({'|'.join(WORDS)})[^\w/]", re.IGNORECASE)
_FORM: Final = "write 'publish FILTER', 'subscribe FILTER' or FILTER"


@dataclass(frozen=True, slots=True)
class AclEntry:
    """The rules of one user, or of all.

    Raises:
        ValueError: a rule cannot be parsed.
    """

    user: str
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for rule in self.allow:
            parse_rule(rule)
        for rule in self.deny:
            parse_rule(rule, denies=True)


@lru_cache(4096)
def parse_rule(text: str, *, denies: bool = False) -> tuple[tuple[str, ...], str]:
    """Return the verbs and the filter of an entry of a list.

    Args:
        text: the entry.
        denies: whether it is in a deny list.

    Raises:
        ValueError: the entry cannot be parsed; the text says what to write instead.
    """
    kind, rest = _take_word(text, _KINDS)
    verb, topic_filter = _take_word(rest, MEANING)
    problem = _problem_of(verb, kind, topic_filter) or _problem_in(kind, topic_filter)
    if not problem and verb == "deny" and not denies:
        problem = f"'deny' is for the deny list; move {topic_filter!r} there"
    if not problem:
        try:
            check_filter(topic_filter)
        except ValueError as error:
            problem = f"{topic_filter!r} is not a filter: {error}"
    if problem:
        message = f"{text!r} is not a rule: {problem}"
        raise ValueError(message)
    return MEANING[verb or "readwrite"], topic_filter


def _take_word(text: str, words: Collection[str]) -> tuple[str, str]:
    """Return the first word of a text if it is one of these, and the rest of the text."""
    match = re.match(r"(\S+)[ \t]+(?=\S)", text)
    if match is None or match[1] not in words:
        return "", text
    return match[1], text[match.end() :]


def _problem_of(verb: str, kind: str, topic_filter: str) -> str:
    """Return why an entry cannot be parsed, and what to write; empty if it can."""
    first, *more = topic_filter.split(None, 1)[:2] or [""]
    close = get_close_matches(first.lower(), WORDS, 1, 0.7)
    problem = ""
    if topic_filter != topic_filter.strip() or not topic_filter.isprintable():
        problem = f"it begins or ends with a space, or contains a control character; {_FORM}"
    elif first == "user" and more and not verb:
        problem = f"the user is a key of the entry; write user = {more[0]!r}"
    elif (not verb or kind) and not more and first in WORDS:
        problem = f"it has no filter; write 'readwrite {first}' for the topic of that name"
    elif more and first in WORDS:
        problem = f"it has two verbs; write one, or 'readwrite {more[0]}' for both"
    elif not verb and more and close:
        problem = f"{first!r} is not a verb; write '{close[0]} {more[0]}'"
    elif not verb and more:
        problem = f"a filter with a space needs a verb: 'readwrite {topic_filter}'; or {_FORM}"
    elif not verb and _NO_SPACE.match(topic_filter):
        problem = f"there must be a space between verb and filter; {_FORM}"
    return problem


def _problem_in(kind: str, topic_filter: str) -> str:
    """Return a warning if a filter has another effect than its author expects, else ""."""
    problem = ""
    if topic_filter.startswith(SHARE):
        plain = split_share(topic_filter)[1]
        problem = f"rules apply to topics, not to shared subscriptions; write {plain!r}"
    elif wrong := _NO_MARK.search(topic_filter):
        problem = (
            f"{wrong[0]!r} is not a placeholder; write %u for the user, %c for the client id"
        )
    elif kind == "topic" and _MARK.search(topic_filter):
        problem = "'topic' of mosquitto has no placeholders; write 'pattern', or omit the word"
    return problem


def is_covered(narrow: str, wide: str) -> bool:
    """Return whether the wide filter matches every topic that the narrow one matches."""
    is_longer = wide.count("/") > narrow.count("/")
    if narrow.endswith("#") and (is_longer or not wide.endswith("#")):
        return False
    return matches(narrow, wide)


def _by_verb(
    rules: Iterable[str], names: dict[str, str], *, denies: bool = False
) -> dict[str, list[str]]:
    """Return the filters of rules by verb, with a client's names for the placeholders."""
    table: dict[str, list[str]] = {verb: [] for verb in _VERBS}
    for rule in rules:
        verbs, topic_filter = parse_rule(rule, denies=denies)
        used = set(_MARK.findall(topic_filter))
        # A name with a wildcard or slash would widen the rule, so the rule is left out.
        if any(not names[mark] or set(names[mark]) & set("+#/") for mark in used):
            continue
        plain = _MARK.sub(lambda match: names[match[0]], topic_filter)
        for verb in verbs:
            table[verb].append(plain)
    return table


@dataclass(frozen=True, slots=True)
class Client:
    """An admitted client, as hooks see it.

    Attributes:
        client_id: the client id of the session.
        username: None without one.
        address: the address of the client.
    """

    client_id: str
    username: str | None
    address: str


#: Called with a client, a filter and the QoS; returns the QoS or a reason code, or None.
SubscribeHook = Callable[[Client, str, int], int | None]


class Ruled:
    """The permissions of a client that is connected over a network; replaced after a reload.

    A client of a tenant is confined to `/tenants/TENANT/`, in addition to its rules.
    """

    __slots__ = (
        *("_allow", "_checks_filters", "_client", "_deny", "_has_rules", "_hook", "_prefix"),
        "is_open",
    )

    def __init__(
        self,
        client: Client,
        entries: Collection[AclEntry] = (),
        user: str = "",
        hook: SubscribeHook | None = None,
        tenant: str = "",
        *,
        checks_filters: bool = True,
    ) -> None:
        """Select the entries that apply to a client.

        Args:
            client: the client, for `%c` and the hook.
            entries: the entries of all users; without any, all topics are allowed.
            user: empty for a client without a name.
            hook: called for subscriptions that the entries grant.
            tenant: the tenant of the client.
            checks_filters: whether a rule has to cover the filter of a subscription.
        """
        self._checks_filters = checks_filters
        self._client = client
        self._hook = hook
        self._prefix = f"/tenants/{tenant}/" if tenant else ""
        #: Whether every topic is open to this client.
        self.is_open = not entries and not tenant
        self._has_rules = bool(entries)
        names = {"%u": user, "%c": client.client_id}
        rules = [entry for entry in entries if entry.user in {EVERYBODY, user}]
        self._allow = _by_verb((rule for entry in rules for rule in entry.allow), names)
        denied = (rule for entry in rules for rule in entry.deny)
        self._deny = _by_verb(denied, names, denies=True)

    def _may(self, verb: str, name: str, fits: Callable[[str, str], bool] = matches) -> bool:
        """Return whether an operation on a topic or filter is allowed and not denied."""
        if not name.startswith(self._prefix):
            return False
        if not self._has_rules:
            return True
        return any(fits(name, rule) for rule in self._allow[verb]) and not any(
            fits(name, rule) for rule in self._deny[verb]
        )

    def may_publish(self, topic: str) -> bool:
        """Return whether this client may publish to a topic."""
        return self._may("publish", topic)

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the granted QoS or a reason code; the hook decides about granted ones."""
        _, plain = split_share(topic_filter)
        if self._checks_filters:
            is_granted = self._may("subscribe", plain, is_covered)
        else:
            is_granted = plain.startswith(self._prefix)
        if not is_granted:
            return ReasonCode.NOT_AUTHORIZED
        if self._hook is None:
            return qos
        label = f"the subscribe hook for client {self._client.client_id!r}"
        answer = call_function(label, self._hook, self._client, topic_filter, qos)
        return qos if answer is None else int(answer)

    def may_receive(self, topic: str) -> bool:
        """Return whether this client may receive messages of a topic."""
        return self._may("subscribe", topic)
