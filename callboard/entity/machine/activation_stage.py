"""The stages of an activation of an entity, and the stages of its commits.

**The activation.** `EntityCell.stage` holds the stage; the table gives the next one.

    stage        READ_STARTED  PAGE_READ  PAGE_APPLIED  RECOVERED
    UNREAD       READING       -          -             -
    READING      -             READ       -             -
    READ         -             -          READING       ACTIVE
    BROKEN       READING       -          -             -

    stage        HANDLER_FAILED  COMMIT_FAILED  PASSIVATED   TERMINATED
    UNREAD       UNREAD          BROKEN         -            ENDED
    READING      UNREAD          BROKEN         -            ENDED
    READ         UNREAD          BROKEN         -            ENDED
    ACTIVE       UNREAD          BROKEN         PASSIVATING  ENDED
    BROKEN       UNREAD          -              PASSIVATING  ENDED
    PASSIVATING  PASSIVATING     PASSIVATING    -            ENDED
    ENDED        ENDED           ENDED          -            -

- UNREAD: the entity is not in memory, and its state is not being read. Messages wait. Only an
  activation that was just created, or whose handler has failed, is in this stage.
- READING: a page of the state is being read. Messages wait.
- READ: a page was read, and waits for a turn that applies it, before all messages.
- ACTIVE: handlers run, and may write.
- BROKEN: a commit has failed, and a handler runs on another thread, as it blocks. Its events
  are not committed; when it has returned, the state is read again.
- PASSIVATING: the `passivated` hook runs. Nothing may be written.
- ENDED: the actor has ended. Its answers still wait for the commits in flight.

The rules, each with the failure that it prevents:

- **The state is read only after the commits in flight have ended** (UNREAD is not READING).
  Suppose that a handler raises while event 7 of an earlier handler is being committed. If the
  state were read at once, it might end with event 6. The next handler would then give its event
  the number 7 as well, and the database would refuse it.
- **The state is read once after a failure** (BROKEN leaves the stage with the first read).
  Suppose that a commit fails while a handler blocks, so that a check some milliseconds later
  has to read the state. Before the check, the handler raises, the state is read for this
  reason, and the next handler persists event 8. If the check read the state again, it would
  discard the entity while event 8 is being committed, against the first rule.
- **A page counts for the read that asked for it** (PAGE_READ only in READING). Suppose that a
  handler fails while the second page of a recovery is being read. If that page were applied to
  the entity of the new read, the events of the first page would be missing.
- **An activation that passivates does not read its state again.** Later messages wait for the
  next activation, which waits for the end of the present one. If the present one became active
  again after a failed commit, nothing would end it.
- **The `activated` hook is not repeated.** If it raises, the activation ends. Reading the state
  again would run the hook again, and so on without end.

**Its commits.** The stage is derived from the batches: see `EntityCell.commits`.

    stage       UNIT_CLOSED  DURABLE     NOT_COMMITTED  STATE_READ
    CLEAN       COMMITTING   -           -              CLEAN
    COMMITTING  GATHERING    CLEAN       FAILED         -
    GATHERING   GATHERING    COMMITTING  FAILED         -
    FAILED      FAILED       -           -              CLEAN

- CLEAN: every event is durable.
- COMMITTING: a batch is in flight.
- GATHERING: a batch is in flight, and later units of work wait in the next one.
- FAILED: a batch was not committed, and the state in memory shows events that are not stored.

One batch is in flight at a time. If a second batch were sent before the first one is durable,
and only the first one failed, the database would store event 8 without event 7.

In FAILED, each unit of work is discarded and every answer fails until the state was read,
because an answer would show events that are not stored. If a batch fails in GATHERING, the next
batch fails with it, because its events follow those of the failed batch.
"""

from collections.abc import Mapping
from enum import auto
from typing import Final

from callboard.transitions import TableEnum


class ActivationStage(TableEnum):
    """A stage of an activation."""

    UNREAD = auto()
    READING = auto()
    READ = auto()
    ACTIVE = auto()
    BROKEN = auto()
    PASSIVATING = auto()
    ENDED = auto()


class ActivationEvent(TableEnum):
    """An event that may change the stage of an activation."""

    READ_STARTED = auto()
    PAGE_READ = auto()
    PAGE_APPLIED = auto()
    RECOVERED = auto()
    HANDLER_FAILED = auto()
    COMMIT_FAILED = auto()
    PASSIVATED = auto()
    TERMINATED = auto()


#: The transitions that all stages have before an activation is active.
_UNRECOVERED: Final = {
    ActivationEvent.HANDLER_FAILED: ActivationStage.UNREAD,
    ActivationEvent.COMMIT_FAILED: ActivationStage.BROKEN,
    ActivationEvent.TERMINATED: ActivationStage.ENDED,
}

#: The next stage for each stage and event; an event without one is illegal in that stage.
ACTIVATION: Final[Mapping[ActivationStage, Mapping[ActivationEvent, ActivationStage]]] = {
    ActivationStage.UNREAD: {
        **_UNRECOVERED,
        ActivationEvent.READ_STARTED: ActivationStage.READING,
    },
    ActivationStage.READING: {
        **_UNRECOVERED,
        ActivationEvent.PAGE_READ: ActivationStage.READ,
    },
    ActivationStage.READ: {
        **_UNRECOVERED,
        ActivationEvent.PAGE_APPLIED: ActivationStage.READING,
        ActivationEvent.RECOVERED: ActivationStage.ACTIVE,
    },
    ActivationStage.ACTIVE: {
        ActivationEvent.HANDLER_FAILED: ActivationStage.UNREAD,
        ActivationEvent.COMMIT_FAILED: ActivationStage.BROKEN,
        ActivationEvent.PASSIVATED: ActivationStage.PASSIVATING,
        ActivationEvent.TERMINATED: ActivationStage.ENDED,
    },
    ActivationStage.BROKEN: {
        ActivationEvent.READ_STARTED: ActivationStage.READING,
        ActivationEvent.HANDLER_FAILED: ActivationStage.UNREAD,
        ActivationEvent.PASSIVATED: ActivationStage.PASSIVATING,
        ActivationEvent.TERMINATED: ActivationStage.ENDED,
    },
    ActivationStage.PASSIVATING: {
        ActivationEvent.HANDLER_FAILED: ActivationStage.PASSIVATING,
        ActivationEvent.COMMIT_FAILED: ActivationStage.PASSIVATING,
        ActivationEvent.TERMINATED: ActivationStage.ENDED,
    },
    ActivationStage.ENDED: {
        # A promise is kept too late, with an answer that cannot be sent.
        ActivationEvent.HANDLER_FAILED: ActivationStage.ENDED,
        ActivationEvent.COMMIT_FAILED: ActivationStage.ENDED,
    },
}


class CommitStage(TableEnum):
    """A stage of the commits of an activation."""

    CLEAN = auto()
    COMMITTING = auto()
    GATHERING = auto()
    FAILED = auto()


class CommitEvent(TableEnum):
    """An event that may change the stage of the commits."""

    #: A unit of work with changes, or with messages for the next commit, was closed.
    UNIT_CLOSED = auto()
    DURABLE = auto()
    NOT_COMMITTED = auto()
    STATE_READ = auto()


#: The next stage for each stage and event; an event without one is illegal in that stage.
COMMITS: Final[Mapping[CommitStage, Mapping[CommitEvent, CommitStage]]] = {
    CommitStage.CLEAN: {
        CommitEvent.UNIT_CLOSED: CommitStage.COMMITTING,
        CommitEvent.STATE_READ: CommitStage.CLEAN,
    },
    CommitStage.COMMITTING: {
        CommitEvent.UNIT_CLOSED: CommitStage.GATHERING,
        CommitEvent.DURABLE: CommitStage.CLEAN,
        CommitEvent.NOT_COMMITTED: CommitStage.FAILED,
    },
    CommitStage.GATHERING: {
        CommitEvent.UNIT_CLOSED: CommitStage.GATHERING,
        CommitEvent.DURABLE: CommitStage.COMMITTING,
        CommitEvent.NOT_COMMITTED: CommitStage.FAILED,
    },
    CommitStage.FAILED: {
        CommitEvent.UNIT_CLOSED: CommitStage.FAILED,
        CommitEvent.STATE_READ: CommitStage.CLEAN,
    },
}
