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

- **The state is read only after the commits in flight have ended** (UNREAD is not READING). A
  handler raises while the event 7 of an earlier handler is being committed. If the state were
  read at once, it might end with event 6; the next handler would number its event 7, too, and
  the database would refuse it as a second event of that number.
- **The state is read once after a failure** (BROKEN leaves the stage with the first read). A
  commit fails while a handler blocks; a check some milliseconds later shall read the state. The
  handler raises before that, the state is read for this reason, and the next handler persists
  event 8. If the check read the state then, it would discard the entity while event 8 is being
  committed: the first rule again.
- **A page counts for the read that asked for it** (PAGE_READ only in READING). A handler fails
  while the second page of a recovery is being read. If that page were applied to the entity of
  the new read, the events of the first page would be missing.
- **An activation that passivates does not read its state again.** Later messages wait for the
  next activation, and this one waits for the end of this one. If a commit failed meanwhile, and
  this one became active again, nothing would end it.
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

One batch is in flight at a time. If a second one were sent before the first is durable, the
database could store event 8 without event 7, if only the first one fails.

FAILED discards each unit of work, and fails every answer, until the state is read: an answer
would show events that are not stored. Both batches of GATHERING fail together, because events
of the second one continue the first.
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
