"""Authorization: what each client may publish and subscribe, by lists and hooks.

An entry of a list is `publish FILTER`, `subscribe FILTER`, or `FILTER` for both; `%u` in it
stands for the user's name and `%c` for the client id. Mosquitto's words mean what they mean
there: `write`, `read`, `readwrite`, `topic` and `pattern` before these, `deny` in a list that
denies. An entry of `deny` stands above all of `allow`; what no entry allows is refused. Rules
for the user `*` hold for everybody.

A subscription is granted if one `allow` covers all of it; topics that `deny` names are then
left out of what is delivered.
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
#: What each verb allows, or denies; the last four are mosquitto's.
MEANING: Final = {
    "publish": _VERBS[:1],
    "subscribe": _VERBS[1:],
    "write": _VERBS[:1],
    "read": _VERBS[1:],
    "readwrite": _VERBS,
    "deny": _VERBS,
}
#: Words that stand before the verb in mosquitto's files.
_KINDS: Final = ("topic", "pattern")
WORDS: Final = (*MEANING, *_KINDS, "user")
_MARK: Final = re.compile("%[uc]")
#: What looks like a mark and is none.
_NO_MARK: Final = re.compile(r"%(?![uc](?!\w))[\w{%]\w*|\$\{")
#: A word that is parted from the filter by something else than a space.
_NO_SPACE: Final = re.compile(rf"({'|'.join(WORDS)})[^\w/]", re.IGNORECASE)
_FORM: Final = "write 'publish FILTER', 'subscribe FILTER' or FILTER"


@dataclass(frozen=True, slots=True)
class AclEntry:
    """What one user, or everybody, is allowed and denied.

    Raises:
        ValueError: a rule cannot be understood.
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
        denies: whether the list is one that denies.

    Raises:
        ValueError: it cannot be understood; the text says what to write.
    """
    kind, rest = _take_word(text, _KINDS)
    verb, topic_filter = _take_word(rest, MEANING)
    problem = _problem_of(verb, kind, topic_filter) or _problem_in(kind, topic_filter)
    if not problem and verb == "deny" and not denies:
        problem = f"'deny' does not allow; put {topic_filter!r} into the list deny"
    if not problem:
        try:
            check_filter(topic_filter)
        except ValueError as error:
            problem = f"{topic_filter!r} holds no filter: {error}"
    if problem:
        message = f"{text!r} is no rule: {problem}"
        raise ValueError(message)
    return MEANING[verb or "readwrite"], topic_filter


def _take_word(text: str, words: Collection[str]) -> tuple[str, str]:
    """Return the first word of a text if it is one of these, and what follows."""
    found = re.match(r"(\S+)[ \t]+(?=\S)", text)
    if found is None or found[1] not in words:
        return "", text
    return found[1], text[found.end() :]


def _problem_of(verb: str, kind: str, topic_filter: str) -> str:
    """Return why words cannot be understood, and what to write; empty if they can."""
    first, *more = topic_filter.split(None, 1)[:2] or [""]
    close = get_close_matches(first.lower(), WORDS, 1, 0.7)
    problem = ""
    if topic_filter != topic_filter.strip() or not topic_filter.isprintable():
        problem = f"it begins or ends with a space, or has a control character in it; {_FORM}"
    elif first == "user" and more and not verb:
        problem = f"the user stands in a key of the entry: user = {more[0]!r}"
    elif (not verb or kind) and not more and first in WORDS:
        problem = f"it has no filter; a topic of that name is 'readwrite {first}'"
    elif more and first in WORDS:
        problem = f"it has two verbs; write one, or 'readwrite {more[0]}' for both"
    elif not verb and more and close:
        problem = f"{first!r} is no verb; write '{close[0]} {more[0]}'"
    elif not verb and more:
        problem = f"a filter with a space needs a verb: 'readwrite {topic_filter}'; or {_FORM}"
    elif not verb and _NO_SPACE.match(topic_filter):
        problem = f"a space parts the verb from the filter; {_FORM}"
    return problem


def _problem_in(kind: str, topic_filter: str) -> str:
    """Return what in a filter a rule takes for something else; empty if there is nothing."""
    problem = ""
    if topic_filter.startswith(SHARE):
        plain = split_share(topic_filter)[1]
        problem = f"rules are about topics, not about groups that share them; write {plain!r}"
    elif wrong := _NO_MARK.search(topic_filter):
        problem = (
            f"{wrong[0]!r} stands for nothing; write %u for the user, %c for the client id"
        )
    elif kind == "topic" and _MARK.search(topic_filter):
        problem = "mosquitto takes no mark in a 'topic'; write 'pattern', or leave the word out"
    return problem


def is_covered(narrow: str, wide: str) -> bool:
    """Whether another filter matches every topic that a filter matches."""
    is_longer = wide.count("/") > narrow.count("/")
    if narrow.endswith("#") and (is_longer or not wide.endswith("#")):
        return False
    return matches(narrow, wide)


def _by_verb(
    rules: Iterable[str], names: dict[str, str], *, denies: bool = False
) -> dict[str, list[str]]:
    """Return the filters of rules by verb, with a client's names in place of marks."""
    table: dict[str, list[str]] = {verb: [] for verb in _VERBS}
    for rule in rules:
        verbs, topic_filter = parse_rule(rule, denies=denies)
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
        denied = (rule for each in about for rule in each.deny)
        self._deny = _by_verb(denied, names, denies=True)

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
