"""What every state does: memory, SQLite and PostgreSQL alike."""

import threading

import pytest

from callboard.entity.state.interface import (
    PARKED_FROM,
    EntitySnapshot,
    Fence,
    JobState,
    JobStatus,
    NewEvent,
    PastEvent,
    RowChanges,
    SlotBatch,
    StoredJob,
    StoredReminder,
)
from callboard.lease.errors import StateCorrupt, StateVersion, ValueRefused
from tests.callboard.entity.state.stores import OpenState, batch, open_one, reminders_of

__all__ = ["open_one"]


def snapshot(number: int, version: int = 1) -> EntitySnapshot:
    return EntitySnapshot("k-1", number, version, f'{{"n": {number}}}')


def test_a_new_state_is_empty(open_one: OpenState) -> None:
    state = open_one("a")
    assert state.recover("Cart", "k-1", 1) == (None, [], False)
    assert state.fences([("Cart", 1)]) == {("Cart", 1): Fence(0, "")}
    assert list(state.journal("Cart")) == []
    assert state.last_position("Cart") == 0
    assert list(state.keys("Cart")) == []
    assert list(state.types()) == []


def test_the_states_of_a_database_have_one_identity(open_one: OpenState) -> None:
    one, other = open_one("a").identity(), open_one("b").identity()
    assert one == other
    assert len(one.id) == 32


def test_what_was_committed_is_recovered_by_another(open_one: OpenState) -> None:
    state = open_one("a")
    assert state.claim("Cart", {1: 1, 2: 1}) == {}
    done = state.commit([batch(2, [1]), batch(1, [1, 2])])
    assert done == ({}, {}, {"Cart": 3})
    other = open_one("b")
    body = '{"item": "tea %d"}'
    assert list(other.recover("Cart", "k-1", 1).events) == [
        PastEvent(number, "shop.ItemAdded", 1, body % number) for number in (1, 2)
    ]
    events = other.events("Cart", "k-1")
    assert [(e.key, e.number, e.epoch, e.kind, e.version) for e in events] == [
        ("k-1", 1, 1, "shop.ItemAdded", 1),
        ("k-1", 2, 1, "shop.ItemAdded", 1),
    ]
    assert events[1].body == '{"item": "tea 2"}'
    assert events[0].time_ms > 1_500_000_000_000
    assert set(state.kinds("Cart")) == {("shop.ItemAdded", 1)}
    assert list(state.keys("Cart")) == ["k-1", "k-2"]
    assert list(state.keys("Cart", after="k-1", limit=5)) == ["k-2"]
    assert list(state.types()) == ["Cart"]


def test_a_claim_with_a_higher_epoch_fences_the_one_before(open_one: OpenState) -> None:
    first, second = open_one("a"), open_one("b")
    first.claim("Cart", {1: 1, 2: 1})
    assert second.claim("Cart", {1: 2}) == {}
    done = first.commit([batch(1, [1]), batch(2, [1])])
    assert done.fenced == {("Cart", 1): Fence(2, "b")}
    assert done.positions == {"Cart": 1}
    assert list(first.recover("Cart", "k-1", 1).events) == []
    assert len(first.recover("Cart", "k-2", 1).events) == 1


def test_of_two_claims_of_an_epoch_the_first_holds(open_one: OpenState) -> None:
    first, second = open_one("a"), open_one("b")
    assert first.claim("Cart", {1: 5}) == {}
    assert second.claim("Cart", {1: 5, 2: 5}) == {1: Fence(5, "a")}
    assert second.claim("Cart", {1: 4}) == {1: Fence(5, "a")}
    assert first.claim("Cart", {1: 5}) == {}, "claiming again changes nothing"
    assert second.fences([("Cart", 1), ("Cart", 2)]) == {
        ("Cart", 1): Fence(5, "a"),
        ("Cart", 2): Fence(5, "b"),
    }


def test_a_slot_that_nobody_claimed_is_fenced(open_one: OpenState) -> None:
    assert open_one("a").commit([batch(1, [1])]).fenced == {("Cart", 1): Fence(0, "")}


def test_a_number_is_written_once_and_others_of_the_group_commit(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1, 2: 1})
    state.commit([batch(1, [1])])
    done = state.commit([batch(1, [1]), batch(2, [1])])
    assert isinstance(done.failed["Cart", 1], StateCorrupt)
    assert set(done.failed) == {("Cart", 1)}
    assert done.positions == {"Cart": 2}
    assert len(state.recover("Cart", "k-2", 1).events) == 1


@pytest.mark.parametrize("body", ['"\x00"', '"\udc80"', "no json"])
def test_what_no_database_takes_hinders_no_others_of_the_group(
    open_one: OpenState, body: str
) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1, 2: 1})
    odd = SlotBatch(("Cart", 1), 1, [NewEvent("k-1", 1, "shop.ItemAdded", 1, body)], (), {})
    done = state.commit([odd, batch(2, [1])])
    assert not done.fenced
    assert set(done.failed) <= {("Cart", 1)}
    assert all(isinstance(error, ValueRefused) for error in done.failed.values())
    assert len(state.recover("Cart", "k-2", 1).events) == 1


def test_positions_rise_without_gaps_for_each_type(open_one: OpenState) -> None:
    state = open_one("a")
    for type_name in ("Cart", "Order"):
        state.claim(type_name, {1: 1, 2: 1})
    state.commit([batch(1, [1, 2]), batch(1, [1], type_name="Order")])
    done = state.commit([batch(2, [1], type_name="Order"), batch(2, [1])])
    assert done.positions == {"Cart": 3, "Order": 2}
    journal = state.journal("Cart")
    assert [(e.position, e.key, e.number) for e in journal] == [
        (1, "k-1", 1),
        (2, "k-1", 2),
        (3, "k-2", 1),
    ]
    assert [e.position for e in state.journal("Cart", after=1, limit=1)] == [2]
    assert state.last_position("Order") == 2


def test_recovery_comes_in_pages(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1})
    state.commit([batch(1, [1, 2, 3, 4, 5])])
    first = state.recover("Cart", "k-1", 1, limit=3)
    assert [e.number for e in first.events] == [1, 2, 3]
    assert first.has_more
    assert [e.number for e in state.events("Cart", "k-1", 3, 3)] == [4, 5]
    assert [e.number for e in state.past_events("Cart", "k-1", 3, 1)] == [4]


def test_the_last_two_snapshots_are_kept_and_the_newest_is_read(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1})
    for number in (1, 2, 3):
        state.commit([batch(1, [number], snapshots=[snapshot(number)])])
    state.commit([batch(1, [4])])
    found = state.recover("Cart", "k-1", 1)
    assert found.snapshot == snapshot(3)
    assert [e.number for e in found.events] == [4]


def test_a_snapshot_of_another_version_is_skipped(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1})
    state.commit([batch(1, [1, 2], snapshots=[snapshot(2)])])
    found = state.recover("Cart", "k-1", 2)
    assert found.snapshot is None
    assert [e.number for e in found.events] == [1, 2]


def test_what_cannot_be_made_again_is_told(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1})
    state.commit([batch(1, [1, 2, 3], snapshots=[snapshot(3)])])
    state.commit([batch(1, [], forget=2)])
    assert state.recover("Cart", "k-1", 1).snapshot == snapshot(3)
    with pytest.raises(StateCorrupt, match="event 3 where event 1 should be"):
        state.recover("Cart", "k-1", 2)
    state.commit([batch(1, [], forget=3)])
    with pytest.raises(StateVersion, match="other versions"):
        state.recover("Cart", "k-1", 2)
    assert [e.position for e in state.journal("Cart")] == []
    assert state.commit([batch(1, [4])]).positions == {"Cart": 4}


def test_texts_of_all_kinds_come_back(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cärt", {1: 1})
    key = "é/'\"%?\\ 中 🙂"
    state.commit([batch(1, [1], key=key, type_name="Cärt")])
    assert state.events("Cärt", key)[0].key == key
    assert list(state.keys("Cärt")) == [key]


def test_writers_at_once_leave_no_gap_and_none_twice(open_one: OpenState) -> None:
    states = [open_one(name) for name in "abc"]
    for slot, state in enumerate(states):
        state.claim("Cart", {slot: 1})
    failures: list[object] = []

    def write(slot: int) -> None:
        for number in range(1, 21):
            done = states[slot].commit([batch(slot, [number])])
            if done.fenced or done.failed:
                failures.append(done)

    threads = [threading.Thread(target=write, args=(slot,)) for slot in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    journal = states[0].journal("Cart")
    assert [e.position for e in journal] == list(range(1, 61))
    for slot in range(3):
        assert [e.number for e in journal if e.key == f"k-{slot}"] == list(range(1, 21))


def rows(*changes: tuple[str, str, int]) -> RowChanges:
    """Changes of reminders: key, name and when; 0 deletes."""
    return RowChanges(
        {
            (key, name): StoredReminder(key, name, due, 0, f'"{name}"') if due else None
            for key, name, due in changes
        }
    )


def job_rows(*changes: StoredJob | tuple[int, JobState | None]) -> RowChanges:
    made = RowChanges()
    for change in changes:
        if isinstance(change, StoredJob):
            made.change_job("q", change.number, change)
        else:
            made.change_job("q", *change)
    return made


def of_slot(slot: int, changes: RowChanges, epoch: int = 1) -> SlotBatch:
    return SlotBatch(("Cart", slot), epoch, rows=changes)


def job(number: int, state: JobState = JobState()) -> StoredJob:  # noqa: B008
    return StoredJob("q", number, state, 0, f'{{"n": {number}}}')


def test_reminders_of_slots_are_found_in_the_order_in_which_they_are_due(
    open_one: OpenState,
) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1, 2: 1, 3: 1})
    now = state.clock()
    assert abs(open_one("b").clock() - now) < 10_000
    first = rows(("k-1", "pay", now + 5_000), ("k-1", "later", now + 500_000))
    second = rows(("k-2", "pay", now - 1_000))
    third = rows(("k-3", "pay", now))
    state.commit([of_slot(1, first), of_slot(2, second), of_slot(3, third)])
    found = open_one("b").reminders("Cart", [1, 2], 60_000)
    assert abs(found.now_ms - now) < 10_000
    assert [(r.key, r.name, r.body) for r in found.reminders] == [
        ("k-2", "pay", '"pay"'),
        ("k-1", "pay", '"pay"'),
    ]
    assert len(state.reminders("Cart", [1, 2, 3], 60_000, limit=1).reminders) == 1
    assert list(state.reminders("Cart", [], 60_000).reminders) == []
    assert [r.name for r in reminders_of(state, "Cart", "k-1")] == ["later", "pay"]
    assert list(reminders_of(state, "Order", "k-1")) == []


def test_a_reminder_is_replaced_and_deleted_by_its_name(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1})
    now = state.clock()
    state.commit([of_slot(1, rows(("k-1", "pay", now), ("k-1", "other", now)))])
    state.commit([of_slot(1, rows(("k-1", "pay", now + 1), ("k-1", "other", 0)))])
    assert [(r.name, r.due_ms) for r in reminders_of(state, "Cart", "k-1")] == [
        ("pay", now + 1)
    ]
    state.commit([of_slot(1, rows(("k-1", "pay", 0), ("k-1", "never was", 0)))])
    assert list(reminders_of(state, "Cart", "k-1")) == []


def test_rows_of_a_fenced_slot_are_left_out(open_one: OpenState) -> None:
    first, second = open_one("a"), open_one("b")
    first.claim("Cart", {1: 1, 2: 1})
    first.commit([of_slot(1, rows(("k-1", "pay", 1))), of_slot(2, job_rows(job(1), job(2)))])
    second.claim("Cart", {1: 2, 2: 2})
    late = job_rows(job(3), (1, None), (2, JobState(JobStatus.DEAD)))
    done = first.commit(
        [of_slot(1, rows(("k-1", "pay", 0), ("k-1", "x", 1))), of_slot(2, late)]
    )
    assert set(done.fenced) == {("Cart", 1), ("Cart", 2)}
    assert [r.name for r in reminders_of(second, "Cart", "k-1")] == ["pay"]
    assert [j.number for j in second.jobs("Cart", "q", JobStatus.READY)] == [1, 2]
    assert dict(second.job_counts("Cart", "q")) == {JobStatus.READY: 2}


def test_jobs_are_put_changed_and_deleted(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1})
    later = JobState(JobStatus.DELAYED, due_ms=70)
    state.commit([of_slot(1, job_rows(job(2), job(1), job(3, later), job(4, later)))])
    ready = state.jobs("Cart", "q", JobStatus.READY)
    assert [(j.key, j.number, j.body) for j in ready] == [
        ("q", 1, '{"n": 1}'),
        ("q", 2, '{"n": 2}'),
    ]
    assert ready[0].time_ms > 1_500_000_000_000
    assert [j.number for j in state.jobs("Cart", "q", JobStatus.DELAYED, (70, 3))] == [4]
    assert [j.number for j in state.jobs("Cart", "q", JobStatus.READY, limit=1)] == [1]
    taken = JobState(JobStatus.TAKEN, 0, 1, "node/7", 30_000, "é")
    state.commit([of_slot(1, job_rows((1, taken), (2, None), (3, JobState())))])
    assert dict(open_one("b").job_counts("Cart", "q")) == {
        JobStatus.READY: 1,
        JobStatus.TAKEN: 1,
        JobStatus.DELAYED: 1,
    }
    assert state.jobs("Cart", "q", JobStatus.TAKEN)[0].state == taken
    assert state.jobs("Cart", "q", JobStatus.READY)[0].number == 3


def test_what_one_commit_changes_twice_is_as_the_last_change_says(open_one: OpenState) -> None:
    state = open_one("a")
    state.claim("Cart", {1: 1})
    taken = JobState(JobStatus.TAKEN, attempt=1)
    state.commit([of_slot(1, job_rows(job(1), (1, taken), job(2), (2, None)))])
    assert [j.state for j in state.jobs("Cart", "q", JobStatus.TAKEN)] == [taken]
    assert sum(state.job_counts("Cart", "q").values()) == 1
    state.commit([of_slot(1, job_rows((1, JobState()), (1, None)))])
    assert not any(state.job_counts("Cart", "q").values())


def test_a_reader_goes_on_where_it_was_and_the_last_opening_alone_stores(
    open_one: OpenState,
) -> None:
    state = open_one("a")
    assert state.open_reader("Cart", "mails") == (0, 1)
    assert state.move_reader("Cart", "mails", 1, 7)
    assert open_one("b").open_reader("Cart", "mails") == (7, 2)
    assert not state.move_reader("Cart", "mails", 1, 9)
    assert state.open_reader("Cart", "others") == (0, 1)
    assert not state.move_reader("Cart", "nobody", 1, 1)
    assert state.open_reader("Cart", "mails") == (7, 3)


def test_a_reminder_with_many_attempts_is_parked_until_it_is_started(
    open_one: OpenState,
) -> None:
    state = open_one("a")
    assert state.claim("Cart", {1: 1}) == {}
    now_ms = state.clock()
    wanted = [("a", "x", now_ms - 9), ("a", "y", now_ms - 8), ("b", "x", now_ms - 7)]
    assert not state.commit([of_slot(1, rows(*wanted))]).failed

    def due() -> list[tuple[str, str, int]]:
        held = state.reminders("Cart", [1], 0).reminders
        return [(each.key, each.name, each.attempts) for each in held]

    found = list(state.reminders("Cart", [1], 0).reminders)
    state.set_attempts("Cart", found[:2], PARKED_FROM - 1)
    assert due() == [("a", "x", PARKED_FROM - 1), ("a", "y", PARKED_FROM - 1), ("b", "x", 0)]
    state.set_attempts("Cart", found[:2], PARKED_FROM)
    state.set_attempts("Cart", [found[2]._replace(due_ms=1)], PARKED_FROM)  # it was set anew
    assert due() == [("b", "x", 0)]
    parked = state.parked_reminders("Cart")
    assert [(each.key, each.name, each.body) for each in parked] == [
        ("a", "x", '"x"'), ("a", "y", '"y"'),
    ]  # fmt: skip
    assert len(state.parked_reminders("Cart", 1)) == 1
    assert list(state.parked_reminders("Other")) == []
    assert state.start_reminders("Cart", "a", "x") == 1
    assert state.start_reminders("Cart", "a", "x") == 0
    assert state.start_reminders("Cart", "a", None) == 1
    assert sorted(due()) == [("a", "x", 0), ("a", "y", 0), ("b", "x", 0)]
    state.set_attempts("Cart", state.reminders("Cart", [1], 0).reminders, PARKED_FROM)
    assert not state.commit([of_slot(1, rows(("a", "x", now_ms)))]).failed
    assert due() == [("a", "x", 0)], "one that is set anew begins anew"
