"""What goes wrong with a server: answers that are lost, restarts, stops, unsafe settings."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard.entity.state.backends import open_view
from callboard.entity.state.interface import Fence, RowChanges, SlotBatch, StoredReminder
from callboard.lease.errors import (
    DatabaseReplaced,
    OutcomeUnknown,
    StateBusy,
    StateCorrupt,
    StateUnavailable,
    UnsafeDatabase,
)
from tests.callboard.entity.state.postgresql_server import running_server
from tests.callboard.entity.state.stores import batch, reminders_of


@pytest.fixture
def url() -> str:
    return running_server().new_database()


@pytest.fixture
def state(url: str) -> Iterator[Any]:
    from callboard.entity.state.postgresql import PostgresqlState

    made = PostgresqlState(url, "a")
    made.claim("Cart", {1: 1, 2: 1})
    yield made
    made.close()


def lose_answers(state: Any, times: int, *, happens: bool) -> list[None]:
    """Let the next commits' requests or their answers get lost."""
    run, lost = state._writing.run, list[None]()

    def broken(work: Callable[[Any], Any]) -> Any:
        if len(lost) == times:
            return run(work)
        lost.append(None)
        if happens:
            run(work)
        state._writing._drop()
        raise StateUnavailable("the connection broke")

    state._writing.run = broken
    return lost


def test_a_commit_whose_answer_was_lost_is_found(state: Any) -> None:
    lost = lose_answers(state, 1, happens=True)
    done = state.commit([batch(1, [1]), batch(2, [1])])
    assert lost == [None]
    assert done == ({}, {}, {"Cart": 2})
    assert state.commit([batch(1, [2])]).positions == {"Cart": 3}


def test_a_commit_whose_answer_was_lost_is_found_though_reads_fail_at_first(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(state, 1, happens=True)
    query, failures = state._reading.query, [None, None]

    def fails_at_first(*args: Any) -> Any:
        if failures:
            failures.pop()
            raise StateUnavailable("the server ended the connection")
        return query(*args)

    monkeypatch.setattr(state._reading, "query", fails_at_first)
    assert state.commit([batch(1, [1])]).positions == {"Cart": 1}
    assert not failures


def test_a_commit_that_took_place_is_never_called_unavailable(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> Any:
        raise StateUnavailable("the server is away")

    monkeypatch.setattr("callboard.entity.state.postgresql.SETTLE_SECONDS", 0.1)
    lose_answers(state, 1, happens=True)
    with monkeypatch.context() as broken:
        broken.setattr(state._reading, "query", fails)
        with pytest.raises(OutcomeUnknown, match="the commit may be stored"):
            state.commit([batch(1, [1])])
    assert [event.number for event in state.recover("Cart", "k-1", 1).events] == [1]


def test_a_commit_that_never_arrived_is_sent_again(state: Any) -> None:
    lose_answers(state, 1, happens=False)
    assert state.commit([batch(1, [1])]).positions == {"Cart": 1}
    assert [e.number for e in state.recover("Cart", "k-1", 1).events] == [1]


def test_a_lost_answer_to_the_question_is_not_taken_for_the_commits(state: Any) -> None:
    """The row says n + 1, and it was this process that counted it there."""
    lose_answers(state, 1, happens=False)
    transaction, lost = state._writing.transaction, list[None]()

    def broken(work: Callable[[Any], Any]) -> Any:
        answer = transaction(work)
        if lost:
            return answer
        lost.append(None)
        raise StateUnavailable("the connection broke")

    state._writing.transaction = broken
    rows = RowChanges()
    rows.reminders["k-1", "wake"] = StoredReminder("k-1", "wake", 5, 0, "{}")
    state.commit([SlotBatch(("Cart", 1), 1, [], rows=rows)])
    assert lost == [None]
    assert [each.name for each in reminders_of(state, "Cart", "k-1")] == ["wake"]


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
def test_reads_beside_a_commit_neither_wait_for_it_nor_ask_what_became_of_it(
    state: Any, is_lost: bool
) -> None:
    """A second thread that asked would take the answer away from the thread of commits."""
    if is_lost:
        lose_answers(state, 1, happens=True)
    transaction, write = state._writing.transaction, state._write
    found: list[int] = []

    def read() -> None:
        found.append(len(state.events("Cart", "k-1")))

    def read_beside(call: Callable[..., Any], *args: Any) -> Any:
        answer = call(*args)
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(20)
        return answer

    state._write = lambda *args: read_beside(write, *args)
    state._writing.transaction = lambda work: read_beside(transaction, work)
    assert state.commit([batch(1, [1])]) == ({}, {}, {"Cart": 1})
    assert len(found) == (2 if is_lost else 1)
    state._writing.transaction = transaction
    assert state.commit([batch(1, [2])]).positions == {"Cart": 2}


def test_one_thread_finds_out_what_was_left_open(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.entity.state.postgresql.SETTLE_SECONDS", 0.0)
    lose_answers(state, 2, happens=True)
    with pytest.raises(OutcomeUnknown):
        state.commit([batch(1, [1])])
    transaction, asked = state._writing.transaction, list[None]()

    def counted(work: Callable[[Any], Any]) -> Any:
        asked.append(None)
        return transaction(work)

    state._writing.transaction = counted
    readers = [threading.Thread(target=state.events, args=("Cart", "k-1")) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert asked == [None]
    assert state.commit([batch(1, [2])]).positions == {"Cart": 2}


def test_a_lost_answer_tells_which_slots_were_fenced(state: Any, url: str) -> None:
    from callboard.entity.state.postgresql import PostgresqlState

    other = PostgresqlState(url, "b")
    other.claim("Cart", {2: 2})
    lose_answers(state, 1, happens=True)
    done = state.commit([batch(1, [1]), batch(2, [1])])
    assert done.fenced == {("Cart", 2): Fence(2, "b")}
    assert done.positions == {"Cart": 1}
    other.close()


def test_a_late_commit_that_was_settled_writes_nothing(state: Any) -> None:
    """The first attempt is still under way, in some buffer, when the second is made."""
    from callboard.entity.state.postgresql import PostgresqlState

    late = PostgresqlState(state.url, "c")
    late.writer, late._number = state.writer, state._number
    lose_answers(state, 1, happens=False)
    state.commit([batch(1, [], forget=0)])
    with pytest.raises(StateCorrupt, match="division by zero"):
        late._writing.run(lambda connection: late._write([batch(2, [1])], connection))
    assert list(state.events("Cart", "k-2")) == []
    late.close()


def test_a_client_that_stopped_in_a_transaction_loses_its_locks(state: Any, url: str) -> None:
    from callboard.lease.postgresql import LIMITS, Connected

    stopped = Connected(url, lambda connection: None)
    began = threading.Event()

    def work(connection: Any) -> None:
        connection.execute("BEGIN")
        connection.execute(LIMITS)
        connection.execute("SELECT * FROM callboard_fences FOR UPDATE")
        began.set()

    stopped.run(work)
    assert began.is_set()
    assert state.commit([batch(1, [1])]).positions == {"Cart": 1}
    stopped.close()


def test_a_client_that_stopped_inside_a_pipeline_loses_its_locks(state: Any, url: str) -> None:
    """To the server it is not idle: none of its limits ends this transaction."""
    from callboard.lease.postgresql import LIMITS, Connected

    stopped = Connected(url, lambda connection: None)
    connection = stopped._connection = stopped._connect()
    pipeline = connection.pipeline()
    pipeline.__enter__()
    connection.execute("BEGIN")
    connection.execute(LIMITS)
    connection.execute("SELECT * FROM callboard_fences FOR UPDATE").fetchone()
    with pytest.raises(StateBusy):
        state.claim("Cart", {1: 2})
    assert state.claim("Cart", {1: 2}) == {}
    stopped.close()


def test_another_timeline_raises_all_fences(state: Any, url: str) -> None:
    state._reading.query("UPDATE callboard_state SET timeline = '00000000' RETURNING 1")
    state._timeline = "00000000"
    with pytest.raises(DatabaseReplaced, match="claimed again"):
        state.commit([batch(1, [1])])
    assert state.commit([batch(1, [1])]).fenced == {("Cart", 1): Fence(2, "")}
    assert state.claim("Cart", {1: 3}) == {}
    assert state.commit([batch(1, [1], epoch=3)]).positions == {"Cart": 1}


def test_tables_of_the_first_version_get_reminders_and_jobs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callboard.entity.state import postgresql, schema

    with monkeypatch.context() as patched:
        patched.setattr(schema, "STEPS", schema.STEPS[:1])
        patched.setattr(postgresql, "STEPS", schema.STEPS)
        old = postgresql.PostgresqlState(url, "a")
        old.claim("Cart", {1: 1})
        old.commit([batch(1, [1, 2])])
        old.close()
    state = postgresql.PostgresqlState(url, "b")
    assert [e.number for e in state.recover("Cart", "k-1", 1).events] == [1, 2]
    row = StoredReminder("k-1", "pay", 7, 0, "{}")
    state.claim("Cart", {1: 2})
    state.commit([SlotBatch(("Cart", 1), 2, rows=RowChanges({("k-1", "pay"): row}))])
    assert list(reminders_of(state, "Cart", "k-1")) == [row]
    state.close()


def test_a_view_reads_and_makes_nothing(url: str) -> None:
    from callboard.entity.state.postgresql import PostgresqlState

    with pytest.raises(StateCorrupt, match="not hold a state of entities"):
        open_view(url)
    state = PostgresqlState(url, "a")
    state.claim("Cart", {1: 1})
    state.commit([batch(1, [1, 2])])
    view = open_view(url)
    assert [e.number for e in view.journal("Cart")] == [1, 2]
    assert view.identity().id == state.identity().id
    view.close()
    state.close()


def test_a_view_tells_once_of_another_timeline(state: Any, url: str) -> None:
    view: Any = open_view(url)
    view._timeline = "00000000"
    view._reading._drop()
    with pytest.raises(DatabaseReplaced, match="failed over"):
        view.types()
    assert view.types() == ["Cart"]
    view.close()


def prepared(state: Any) -> int:
    """Return how many statements the connection for commits has prepared."""
    sql = "SELECT count(*) FROM pg_prepared_statements"
    return int(state._writing.transaction(lambda made: made.execute(sql).fetchone())[0])


def test_statements_of_commits_are_prepared(state: Any) -> None:
    for number in range(1, 8):
        state.commit([batch(1, [number])])
    assert prepared(state) >= 3


def test_nothing_is_prepared_where_a_pooler_stands_between(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psycopg import ConnectionInfo

    from callboard.entity.state.postgresql import PostgresqlState

    monkeypatch.setattr(ConnectionInfo, "backend_pid", 1)  # made up, as poolers do
    state = PostgresqlState(url, "a")
    state.claim("Cart", {1: 1})
    for number in range(1, 8):
        state.commit([batch(1, [number])])
    assert prepared(state) == 0
    state.close()


def test_of_a_text_that_the_server_refuses_nothing_is_written(state: Any) -> None:
    done = state.commit([batch(1, [1], key="a\0b"), batch(2, [1])])
    assert set(done.failed) == {("Cart", 1)}
    assert "NUL" in str(done.failed["Cart", 1])
    assert [each.key for each in state.journal("Cart")] == ["k-2"]


@pytest.mark.slow
def test_a_database_of_another_encoding_is_told_what_is_wrong(url: str) -> None:
    import psycopg

    from callboard.entity.state.postgresql import PostgresqlState

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0"
        )
    try:
        with pytest.raises(UnsafeDatabase, match="encoding SQL_ASCII") as found:
            PostgresqlState(f"postgresql://postgres@/ascii?{url.partition('?')[2]}", "a")
        assert "fsync" not in str(found.value)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP DATABASE ascii WITH (FORCE)")
