"""Errors of entities; errors of databases are in `callboard.lease.errors`.

::

    CallboardError
    ├── EntityUnavailable         nothing happened, repeat it           (ConnectionError)
    ├── NotPersistable            an event that cannot be persisted here (TypeError)
    ├── StateNotPersisted         a change of the state that would be lost
    ├── NotAnActor                an entity cannot be monitored or killed (TypeError)
    ├── JobLost                   another taker has the job by now
    ├── QueueFull                 a work queue has reached its limit of jobs or takers
    ├── NeedsLeases               two nodes host a type without leases
    └── DuplicateEntityType       a node hosts two classes of one name
"""

from typing import ClassVar

from callboard.kernel.errors import CallboardError


class EntityUnavailable(CallboardError, ConnectionError):
    """No owner accepted the message, or its events were not stored; repeat it."""

    #: A repeated ask is handled.
    nothing_happened: ClassVar[bool] = True


class NotPersistable(CallboardError, TypeError):
    """The event has no `@event` method, or no handler that may write runs."""


class StateNotPersisted(CallboardError):
    """A handler changed the state without persisting; raised in tests and development."""


class NotAnActor(CallboardError, TypeError):
    """An entity outlives its activations: it cannot be monitored, linked or killed."""


class JobLost(CallboardError):
    """The taker's time ended, or its node was lost; another taker has the job."""


class QueueFull(CallboardError):
    """A work queue has reached its limit of jobs, or of waiting takers; slow down."""


class NeedsLeases(CallboardError):
    """A second node wants to host a type, and no leases decide which node owns a slot."""


class DuplicateEntityType(CallboardError, TypeError):
    """This node hosts another class of that name; set `name` of one of them."""
