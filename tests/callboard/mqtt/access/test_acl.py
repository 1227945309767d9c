"""Topic rules for each user."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from callboard.mqtt.access.acl import (
    MEANING,
    WORDS,
    AclEntry,
    Client,
    Ruled,
    is_covered,
    parse_rule,
)
from callboard.mqtt.access.ban import BanList
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import check_filter, is_valid_filter, matches

levels = st.lists(st.sampled_from(["a", "b", "+", "", "$x"]), min_size=1, max_size=4)
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]), levels, st.sampled_from([[], ["#"]])
)
topics = st.lists(st.sampled_from(["a", "b", "c", "", "$x"]), min_size=1, max_size=5).map(
    "/".join
)


@given(filters, filters, topics)
def test_a_filter_that_covers_another_matches_all_that_it_matches(wide, narrow, topic):
    assume(is_valid_filter(wide) and is_valid_filter(narrow) and topic)
    if is_covered(narrow, wide) and matches(topic, narrow):
        assert matches(topic, wide)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("#", "a/+/#", True),
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/+", "a/b", True),
        ("a/+", "a/#", False),
        ("a/b", "a/+", False),
        ("a", "a/b", False),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/+/x", True),
    ],
)
def test_covering(wide, narrow, expected):
    assert is_covered(narrow, wide) is expected


def access(*entries, user="ann", client_id="c1", tenant=""):
    rules = [AclEntry(*entry) for entry in entries]
    return Ruled(Client(client_id, None, ""), rules, user, tenant=tenant)


def test_a_topic_that_no_entry_allows_is_refused():
    rules = access(("ann", ("publish up/#", "subscribe down/#")))

    assert rules.may_publish("up/1")
    assert not rules.may_publish("down/1")
    assert rules.may_subscribe("down/+", 1) == 1
    assert rules.may_subscribe("up/1", 1) == ReasonCode.NOT_AUTHORIZED
    assert rules.may_subscribe("#", 1) == ReasonCode.NOT_AUTHORIZED
    assert rules.may_subscribe("$share/g/down/1", 2) == 2


def test_deny_stands_above_allow_also_inside_of_a_granted_filter():
    rules = access(("ann", ("#",), ("secret/#",)))

    assert rules.may_subscribe("#", 0) == 0
    assert rules.may_receive("open/1")
    assert not rules.may_receive("secret/1")
    assert rules.may_subscribe("secret/1", 0) == ReasonCode.NOT_AUTHORIZED
    assert not rules.may_publish("secret/1")


def test_rules_of_other_users_do_not_apply_and_general_rules_do():
    rules = access(("bob", ("#",)), ("*", ("news/#",)))

    assert rules.may_publish("news/1")
    assert not rules.may_publish("x")


def test_names_stand_in_for_marks_and_cannot_widen_a_rule():
    entry = ("*", ("users/%u/#", "clients/%c/#"))

    assert access(entry).may_publish("users/ann/x")
    assert access(entry).may_publish("clients/c1/x")
    assert not access(entry, user="+").may_publish("users/bob/x")
    assert not access(entry, user="bob/x").may_publish("users/bob/x/y")
    assert not access(entry, user="").may_publish("users//x")
    assert not access(entry, user="%c").may_publish("users/c1/x")


def test_a_rule_without_a_filter_is_refused():
    assert parse_rule("publish a b/#") == (("publish",), "a b/#")
    assert parse_rule("a/#") == (("publish", "subscribe"), "a/#")
    with pytest.raises(ValueError, match="is not a filter"):
        parse_rule("publish a/#/b")


def test_a_tenant_stays_within_its_topics():
    rules = access(("*", ("#",), ("/tenants/acme/x",)), tenant="acme")

    assert rules.may_publish("/tenants/acme/y")
    assert not rules.may_publish("/tenants/acme/x")
    assert not rules.may_publish("/tenants/other/y")
    assert rules.may_subscribe("/tenants/acme/#", 1) == 1
    assert rules.may_subscribe("$share/g/#", 1) == ReasonCode.NOT_AUTHORIZED
    assert not rules.may_receive("x")


@pytest.mark.parametrize(
    ("rule", "verbs", "topic_filter"),
    [
        ("write secret/#", "publish", "secret/#"),
        ("read secret/#", "subscribe", "secret/#"),
        ("readwrite a", "publish subscribe", "a"),
        ("topic a/#", "publish subscribe", "a/#"),
        ("topic write a/+", "publish", "a/+"),
        ("topic read a b", "subscribe", "a b"),
        ("pattern read %u/%c/#", "subscribe", "%u/%c/#"),
        ("pattern a/%c", "publish subscribe", "a/%c"),
        ("publish\ta", "publish", "a"),
        ("readwrite write", "publish subscribe", "write"),
        ("a/write/#", "publish subscribe", "a/write/#"),
        ("writer/#", "publish subscribe", "writer/#"),
        ("write/#", "publish subscribe", "write/#"),
        ("load/100%", "publish subscribe", "load/100%"),
        ("$SYS/#", "publish subscribe", "$SYS/#"),
    ],
)
def test_rules_in_mosquittos_words_have_the_same_meaning(rule, verbs, topic_filter):
    assert parse_rule(rule) == (tuple(verbs.split()), topic_filter)


@pytest.mark.parametrize(
    "rule", ["deny secret/#", "topic deny secret/#", "pattern deny secret/#"]
)
def test_a_deny_list_accepts_mosquittos_deny(rule):
    assert parse_rule(rule, denies=True) == (("publish", "subscribe"), "secret/#")
    with pytest.raises(ValueError, match="is for the deny list"):
        parse_rule(rule)


@pytest.mark.parametrize(
    ("rule", "advice"),
    [
        ("wirte secret/#", "'write secret/#'"),
        ("Write secret/#", "'write secret/#'"),
        ("publsh a", "'publish a'"),
        ("forbid secret/#", "'readwrite forbid secret/#'"),
        ("write read a", "'readwrite a'"),
        ("publish subscribe a", "'readwrite a'"),
        ("write:secret/#", "must be a space"),
        ("publish,subscribe a", "a filter with a space"),
        ("subscribe=a", "must be a space"),
        ("write", "'readwrite write'"),
        ("topic read", "'readwrite read'"),
        ("pattern", "'readwrite pattern'"),
        ("user ann", "user = 'ann'"),
        (" a", "a space"),
        ("a ", "a space"),
        ("write a\n", "a space"),
        ("write a\x00b", "control character"),
        ("", "it is empty"),
        ("write a/#/b", "'a/#'"),
        ("write +x", "alone"),
        ("x#", "alone"),
        ("read $share/g/secret/#", "'secret/#'"),
        ("write %user/#", "%u for the user"),
        ("write %U/#", "%u for the user"),
        ("write %i", "%u for the user"),
        ("write ${username}/#", "%u for the user"),
        ("write %%u", "%u for the user"),
        ("topic write %u/#", "'pattern'"),
        ("write " + "a/" * 300, "levels"),
        ("write " + "é" * 40_000, "bytes"),
    ],
)
def test_an_invalid_rule_is_refused_with_a_correction(rule, advice):
    for denies in (False, True):
        with pytest.raises(ValueError, match=re.escape(advice)):
            parse_rule(rule, denies=denies)
    for lists in ({"allow": (rule,)}, {"deny": (rule,)}):
        with pytest.raises(ValueError, match="is not a rule"):
            AclEntry("ann", **lists)


_PIECES = st.sampled_from(
    [
        "write",
        "read",
        "deny",
        "topic",
        "user",
        "wirte",
        "a",
        "a/b",
        "#",
        "+",
        "%u",
        "%x",
        "$share/g/a",
    ]
)


@given(
    st.lists(_PIECES | st.text(max_size=4), min_size=1, max_size=4),
    st.sampled_from([" ", "", "/", ":", "  ", "\t"]),
    st.booleans(),
)
def test_a_rule_is_refused_or_about_the_filter_at_its_end(pieces, between, denies):
    text = between.join(pieces)
    try:
        verbs, topic_filter = parse_rule(text, denies=denies)
    except ValueError:
        return
    check_filter(topic_filter)
    assert text.endswith(topic_filter)
    words = text.removesuffix(topic_filter).split()
    assert len(words) <= 2
    assert set(words) <= {*WORDS}
    assert verbs == MEANING[words[-1] if words and words[-1] in MEANING else "readwrite"]
    assert " " not in topic_filter or words


def test_a_denied_write_is_denied():
    client = access(("*", ("#",), ("write secret/#",)))

    assert not client.may_publish("secret/a")
    assert client.may_publish("open")
    assert client.may_receive("secret/a")


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ("client:*", "pattern"),
        ("client: c", "a space"),
        ("host:192.0.2.7/24", "host:192.0.2.0/24"),
        ("host:localhost", "not an address"),
        ("Client:c", "is not a ban"),
        ("c", "is not a ban"),
        ("client:", "is not a ban"),
    ],
)
def test_a_ban_that_matches_other_clients_or_none_is_refused(entry, advice):
    with pytest.raises(ValueError, match=advice):
        BanList([entry])


def test_filters_are_granted_and_messages_checked_without_check_filters() -> None:
    entries = (AclEntry("ann", ("read a/#",), ("a/secret",)),)
    strict = Ruled(Client("c", "ann", ""), entries, "ann")
    free = Ruled(Client("c", "ann", ""), entries, "ann", checks_filters=False)
    tenant = Ruled(Client("c", "ann", ""), entries, "ann", tenant="t", checks_filters=False)

    assert strict.may_subscribe("#", 1) == ReasonCode.NOT_AUTHORIZED
    assert free.may_subscribe("#", 1) == 1
    assert [free.may_receive(topic) for topic in ("a/b", "a/secret", "b")] == [
        True,
        False,
        False,
    ]
    assert tenant.may_subscribe("#", 1) == ReasonCode.NOT_AUTHORIZED
    assert tenant.may_subscribe("/tenants/t/#", 1) == 1
