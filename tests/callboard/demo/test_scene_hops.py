from callboard.demo.scene import PASSAGES_KEPT, FollowedAsk, Hop, SceneFollower


def asked(number=10, message_id=7, host="C"):
    return FollowedAsk(
        "A", host, message_id, number, sent_ns=1000, handled_ns=91_000, answered_ns=301_000
    )


def test_a_reading_is_followed_there_and_back_in_the_order_of_time():
    follower = SceneFollower()
    follower.passed("A", 7, "B", 201_000)
    follower.passed("A", 7, "B", 51_000)
    follower.passed("D", 7, "B", 61_000)  # the same number of another node's ask
    follower.answered(asked())

    assert follower.last.hops == (
        Hop("A", 0.0),
        Hop("B", 50.0),
        Hop("C", 90.0),
        Hop("B", 200.0),
        Hop("A", 300.0),
    )
    assert follower.last.line() == "A 0 µs → B 50 µs → C 90 µs → B 200 µs → A 300 µs"


def test_passages_may_be_reported_after_the_answer():
    follower = SceneFollower()
    follower.passed("A", 7, "B", 51_000)
    follower.answered(asked())
    follower.answered(asked(number=20, message_id=8))
    assert follower.last.number == 10

    follower.passed("A", 8, "B", 52_000)

    assert follower.last.number == 20


def test_a_neighbor_is_reached_without_passages():
    follower = SceneFollower()
    follower.passed("A", 7, "B", 51_000)
    follower.answered(asked())
    follower.answered(asked(number=20, message_id=8, host="B"))

    assert follower.last.number == 20
    assert [hop.node for hop in follower.last.hops] == ["A", "B", "A"]


def test_nothing_is_shown_before_the_first_answer():
    assert SceneFollower().last is None


def test_passages_that_nobody_asks_for_are_forgotten():
    follower = SceneFollower()
    for number in range(PASSAGES_KEPT + 1):
        follower.passed("A", number, "B", 1)
    follower.answered(asked(message_id=0))

    assert len(follower.last.hops) == 3
