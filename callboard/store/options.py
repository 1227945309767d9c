"""How stores behave; defaults are those of Broker 2.x."""

from dataclasses import fields
from typing import Final

from callboard.kernel.checks import seconds
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers

#: Commands that are acknowledged at once; fewer are at the next tick, or when asked for.
ACK_AFTER: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Times of channels; masters and their clones should have the same.

    Attributes:
        tick_interval: seconds of one tick, in which the other times are counted.
        heartbeat_interval: ticks between heartbeats.
        nack_timeout: ticks that a missing command may be late before it is asked for.
        connection_timeout: ticks of silence after which the other side counts as lost.
        buffer_limit: commands kept for clones that have not acknowledged them.
        failover: who takes the place of a master that is lost: `none`, nobody does.

    Raises:
        ValueError: a time is not positive, or they do not fit each other; another failover.
    """

    tick_interval: float = 0.1
    heartbeat_interval: int = 5
    nack_timeout: int = 2
    connection_timeout: int = 100
    buffer_limit: int = 65_536
    failover: str = "none"

    def __post_init__(self) -> None:
        if self.failover != "none":
            msg = (
                f"stores have no failover {self.failover!r:.40}, only 'none': no other master "
                "is elected; a master with a file comes back with all that was acknowledged"
            )
            raise ValueError(msg)
        is_ordered = 0 < self.heartbeat_interval < self.connection_timeout
        if not is_ordered or not 0 < self.nack_timeout < self.connection_timeout:
            msg = (
                "a store needs 0 < heartbeat interval, nack timeout < connection timeout, not "
                f"{self.heartbeat_interval}, {self.nack_timeout}, {self.connection_timeout}"
            )
            raise ValueError(msg)
        if not self.tick_interval > 0 or self.buffer_limit < 1:
            msg = "the tick of a store and its buffer are more than 0"
            raise ValueError(msg)
        for name in ("heartbeat_interval", "nack_timeout", "connection_timeout"):
            if type(getattr(self, name)) is not int:
                msg = f"{name}={getattr(self, name)!r:.80}: a number of ticks is whole"
                raise ValueError(msg)
        for each in fields(self):
            if each.type is float:
                time = seconds(getattr(self, each.name), each.name)
                object.__setattr__(self, each.name, time)
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOptions(StoreOptions):
    """How clones behave without their master, in seconds.

    Attributes:
        resync_interval: between attempts to find the master.
        stale_interval: after which reads fail with `StaleData`.
        mutation_buffer_interval: for which writes are kept; older ones are dropped.
        max_get_delay: that a read waits for the first contact with the master.
    """

    resync_interval: float = 10.0
    stale_interval: float = 300.0
    mutation_buffer_interval: float = 120.0
    max_get_delay: float = 5.0
