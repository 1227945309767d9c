"""What can go wrong with entities; what databases raise is in `callboard.lease.errors`.

::

    CallboardError
    ├── EntityUnavailable         nothing happened, repeat it           (ConnectionError)
    ├── NotPersistable            an event that cannot be persisted here (TypeError)
    ├── StateNotPersisted         a change of the state that would be lost
    ├── NotAnActor                an entity has no end that could be watched (TypeError)
    ├── JobLost                   a job of a queue is another taker's by now
    ├── QueueFull                 a work queue has all the jobs, or takers, it may have
    ├── NeedsLeases               two nodes host a type, and nothing decides between them
    └── DuplicateEntityType       two classes of one name are hosted by a node
"""

from typing import ClassVar

from callboard.kernel.errors import CallboardError


class EntityUnavailable(CallboardError, ConnectionError):
    """No owner could take the message, or its events were not stored; repeat it."""

    #: An ask that comes again is handled.
    nothing_happened: ClassVar[bool] = True


class NotPersistable(CallboardError, TypeError):
    """An event that no `@event` takes, or a `persist` outside of a handler that may write."""


class StateNotPersisted(CallboardError):
    """A handler changed the state and persisted nothing; found in tests and development."""


class NotAnActor(CallboardError, TypeError):
    """An entity outlives its activations: it cannot be monitored, linked or killed."""


class JobLost(CallboardError):
    """The taker's time was over, or its node out of reach: another one does the job, or did."""


class QueueFull(CallboardError):
    """A work queue has all the jobs that it may have, or too many takers wait: slow down."""


class NeedsLeases(CallboardError):
    """A second node wants to host a type, and there are no leases that would decide."""


class DuplicateEntityType(CallboardError, TypeError):
    """Another class of that name is hosted on this node; set `name` of one of them."""
