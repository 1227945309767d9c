from callboard.demo.scene import PASSAGES_KEPT, FollowedAsk, Rate, SceneFollower


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
        ("A", 0.0),
        ("B", 50.0),
        ("C", 90.0),
        ("B", 200.0),
        ("A", 300.0),
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
    assert [node for node, _ in follower.last.hops] == ["A", "B", "A"]


def test_nothing_is_shown_before_the_first_answer():
    assert SceneFollower().last is None


def test_passages_that_nobody_asks_for_are_forgotten():
    follower = SceneFollower()
    for number in range(PASSAGES_KEPT + 1):
        follower.passed("A", number, "B", 1)
    follower.answered(asked(message_id=0))

    assert len(follower.last.hops) == 3


def test_rate_comes_near_the_rise_per_second_and_stays():
    rate = Rate()
    for tick in range(100):
        rate.update(tick / 10, tick * 5)

    assert 49.9 < rate.per_second < 50.1


def test_a_counter_that_begins_again_has_no_negative_rate():
    rate = Rate()
    rate.update(0.0, 0)
    rate.update(1.0, 100)

    assert rate.update(2.0, 0) == 0.0


def test_a_report_of_the_same_moment_changes_no_rate():
    rate = Rate()
    rate.update(0.0, 0)
    before = rate.update(1.0, 100)

    assert rate.update(1.0, 200) == before
