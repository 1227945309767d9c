"""Lists of topics for each user."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from callboard.mqtt.access.acl import AclEntry, Client, Ruled, is_covered, parse_rule
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import is_valid_filter, matches

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


def test_what_no_entry_allows_is_refused():
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


def test_rules_of_others_give_nothing_and_those_of_everybody_do():
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
    with pytest.raises(ValueError, match="holds no filter"):
        parse_rule("publish a/#/b")


def test_a_tenant_stays_within_its_topics():
    rules = access(("*", ("#",), ("/tenants/acme/x",)), tenant="acme")

    assert rules.may_publish("/tenants/acme/y")
    assert not rules.may_publish("/tenants/acme/x")
    assert not rules.may_publish("/tenants/other/y")
    assert rules.may_subscribe("/tenants/acme/#", 1) == 1
    assert rules.may_subscribe("$share/g/#", 1) == ReasonCode.NOT_AUTHORIZED
    assert not rules.may_receive("x")
