"""Options of stores; the defaults match Broker 2.x."""

from dataclasses import fields
from typing import Final

from callboard.arguments import seconds
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers

#: Number of commands that triggers an acknowledgement; fewer are acknowledged at the next tick,
#: or on request.
ACK_AFTER: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Times of the channels of a store; a master and its clones should use the same.

    Attributes:
        tick_interval: seconds per tick, the unit of the other times.
        heartbeat_interval: ticks between heartbeats.
        nack_timeout: ticks to wait for a missing command before requesting it.
        connection_timeout: ticks of silence after which the other side is lost.
        buffer_limit: commands kept for clones that have not acknowledged them.
        failover: replacement of a lost master; only `none` is supported.

    Raises:
        ValueError: a time is not positive, the times contradict each other, or another
            failover was requested.
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
                f"failover={self.failover!r:.40} is not supported, only 'none': no other "
                "master is elected; a master with a file returns with all acknowledged commands"
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
            msg = "tick_interval and buffer_limit of a store must be more than 0"
            raise ValueError(msg)
        for name in ("heartbeat_interval", "nack_timeout", "connection_timeout"):
            if type(getattr(self, name)) is not int:
                msg = (
                    f"{name}={getattr(self, name)!r:.80}: a number of ticks must be an integer"
                )
                raise ValueError(msg)
        for option in fields(self):
            if option.type is float:
                time = seconds(getattr(self, option.name), option.name)
                object.__setattr__(self, option.name, time)
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOptions(StoreOptions):
    """Options of clones, for the time without their master.

    Attributes:
        resync_interval: seconds between attempts to find the master.
        stale_interval: seconds without the master after which reads fail with `StaleData`.
        mutation_buffer_interval: seconds for which writes are buffered; older ones are dropped.
        max_get_delay: seconds that a read waits for the first contact with the master.
    """

    resync_interval: float = 10.0
    stale_interval: float = 300.0
    mutation_buffer_interval: float = 120.0
    max_get_delay: float = 5.0
