import pytest

from callboard.demo.outcome import Balance, RunOutcome


def test_the_balance_is_the_sum_of_the_accounts():
    accounts = [
        {"sent": 10, "confirmed": 7, "lost": 3, "in_flight": 0},
        {"sent": 5, "confirmed": 5, "lost": 0, "in_flight": 0},
    ]

    assert Balance.of(accounts) == Balance(15, 12, 3, 0)
    assert Balance.of([]) == Balance()


@pytest.mark.parametrize(
    ("balance", "is_exact"),
    [
        (Balance(10, 7, 3, 0), True),
        (Balance(10, 7, 2, 1), False),  # still under way
        (Balance(10, 7, 2, 0), False),  # one is missing
        (Balance(10, 8, 3, 0), False),  # one too many
    ],
)
def test_a_balance_is_exact_when_every_message_is_accounted_for(balance, is_exact):
    assert balance.is_exact is is_exact
    assert RunOutcome(balance).exit_code == (0 if is_exact else 1)


def test_the_last_line_tells_the_whole_story():
    outcome = RunOutcome(Balance(12345, 12301, 44, 0), down_ms=12.4, service_ms=48.2)

    assert outcome.line() == (
        "balance: sent 12,345 = delivered 12,301 + reported lost 44 "
        "· down after 12 ms over 3 hops · back in service after 48 ms"
    )


def test_the_last_line_tells_of_the_store():
    outcome = RunOutcome(Balance(1, 1, 0, 0), store="store: 9 writes acknowledged, 0 lost")

    assert outcome.line().endswith("reported lost 0 · store: 9 writes acknowledged, 0 lost")


def test_the_last_line_tells_of_entities_that_answered_again():
    told = RunOutcome(Balance(1, 1, 0, 0), peaks=7, peaks_ms=187.4).line()

    assert told.endswith("reported lost 0 · 7 entities back after 187 ms")
    assert "entities" not in RunOutcome(Balance(1, 1, 0, 0), peaks_ms=3.0).line()


def test_what_was_not_measured_is_not_mentioned():
    assert (
        RunOutcome(Balance(1, 1, 0, 0)).line()
        == "balance: sent 1 = delivered 1 + reported lost 0"
    )


def test_a_balance_that_does_not_close_says_what_is_missing():
    line = RunOutcome(Balance(10, 6, 1, 1)).line()

    assert line == (
        "balance: sent 10 ≠ delivered 6 + reported lost 1 + still in flight 1 + unexplained 2"
    )


def test_another_problem_fails_the_run_as_well():
    outcome = RunOutcome(Balance(), problem="node C: port taken")

    assert outcome.exit_code == 1
    assert outcome.line().endswith("failed: node C: port taken")
