import pytest

from callboard.basp.header import CORE_ACTOR, DIRECTORY, FIRST_ACTOR, INSPECTOR, SPAWN_SERVER
from callboard.proxies.rights.doors import (
    CORE_NAME,
    MASTER_NAME,
    is_door,
    may_look_up,
    opens,
)
from callboard.proxies.rights.rights import Rights

EVERY_NAME = Rights(**dict.fromkeys(("names", "send", "monitor", "stop", "link"), ["*"]))


@pytest.mark.parametrize("name", ["callboard.mqtt.routers", "callboard.StoreActor"])
def test_names_of_callboard_itself_are_matched_by_patterns_that_say_so_only(name):
    assert not EVERY_NAME.permit("names", name)
    assert not EVERY_NAME.permit("stop", name)
    assert Rights(names=["callboard.*"]).permit("names", name)
    assert Rights.member().permit("names", name)


@pytest.mark.parametrize(
    ("number", "rights"),
    [
        (CORE_ACTOR, Rights(publish=["/a"])),
        (CORE_ACTOR, Rights(subscribe=[""])),
        (CORE_ACTOR, Rights(stores={"prices": "read"})),
        (SPAWN_SERVER, Rights(spawn=["Till"])),
        (INSPECTOR, Rights(inspect=True)),
        (INSPECTOR, Rights(drain=True)),
        (DIRECTORY, Rights()),
    ],
)
def test_a_door_is_opened_by_its_own_rights(number, rights):
    assert is_door(number)
    assert opens(rights, number)
    assert number == DIRECTORY or not opens(EVERY_NAME, number)


@pytest.mark.parametrize("number", [0, 5, FIRST_ACTOR - 1, FIRST_ACTOR])
def test_other_numbers_are_no_doors(number):
    assert not is_door(number)
    assert not opens(Rights.member(), number)


def test_endpoints_find_each_other_where_a_topic_or_a_store_is_open():
    assert may_look_up(Rights(publish=["/a"]), CORE_NAME)
    assert not may_look_up(EVERY_NAME, CORE_NAME)


def test_masters_of_stores_are_given_to_no_leaf():
    rights = Rights(names=["*", "callboard.*"], stores={"*": "write"})

    assert not may_look_up(rights, MASTER_NAME + b"prices".hex())
    assert may_look_up(rights, "till")
