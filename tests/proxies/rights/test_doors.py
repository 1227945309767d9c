import pytest

from callboard.proxies.rights.rights import CORE_NAME, MASTER_NAME, Rights, may_look_up

EVERY_NAME = Rights(**dict.fromkeys(("names", "send", "monitor", "stop", "link"), ["*"]))


@pytest.mark.parametrize("name", ["callboard.mqtt.routers", "callboard.StoreActor"])
def test_names_of_callboard_itself_are_matched_by_patterns_that_say_so_only(name):
    assert not EVERY_NAME.permit("names", name)
    assert not EVERY_NAME.permit("stop", name)
    assert Rights(names=["callboard.*"]).permit("names", name)
    assert Rights.member().permit("names", name)


def test_endpoints_find_each_other_where_a_topic_or_a_store_is_open():
    assert may_look_up(Rights(publish=["/a"]), CORE_NAME)
    assert not may_look_up(Rights(publish=["/a"]), CORE_NAME, is_here=False)
    assert not may_look_up(EVERY_NAME, CORE_NAME)


def test_masters_of_stores_are_given_to_no_leaf():
    rights = Rights(names=["*", "callboard.*"], stores={"*": "write"})

    assert not may_look_up(rights, MASTER_NAME + b"prices".hex())
    assert may_look_up(rights, "till")
