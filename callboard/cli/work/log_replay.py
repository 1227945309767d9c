"""Implementation of `callboard log replay`."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from callboard.cli.options import option
from callboard.cli.output import say
from callboard.cli.own_node import JoinOptions, catch_signals, confirm
from callboard.commitlog import Record

if TYPE_CHECKING:
    from callboard.pipeline.replay import Replay


@dataclass(frozen=True, kw_only=True)
class LogReplayOptions(JoinOptions):
    """Selection and speed of the replayed records."""

    speed: str = option(
        "1", "Factor relative to the recorded pace; 0 or max: as fast as possible.", metavar="N"
    )
    time: str = option("", "Field of payloads with the time.", "--time", metavar="FIELD")
    start: str = option(
        "earliest", "earliest, latest, an offset or a time.", "--from", metavar="PLACE"
    )
    until: str = option(
        "latest", "End, in the same forms; it is not replayed.", metavar="PLACE"
    )
    topic: list[str] | None = option(
        None, "Only topics with this prefix; repeatable.", "--topic", metavar="PREFIX"
    )
    longest_pause: str = option("", "Longest pause between two records.", metavar="SPAN")
    wait: float = option(
        10.0,
        "Seconds to wait for subscribers; then records count as unheard.",
        min=0.0,
        metavar="SECONDS",
    )
    timeout: float = option(10.0, "Seconds to reach each peer.", min=0.0)

    def run(self, place: str, start: int, records: Iterable[Record]) -> int:
        """Replay records of a log from an offset on; return the exit code.

        Raises:
            PipelineError: the speed or the pause is invalid.
            CliError: no node can be reached, or messages were lost in transit.
        """
        from callboard.pipeline.pace import EventPace, parse_speed
        from callboard.pipeline.queries import seconds_of
        from callboard.pipeline.replay import Replay
        from callboard.pipeline.result_publisher import Outlet

        longest = seconds_of(self.longest_pause) if self.longest_pause else math.inf
        pace = EventPace(parse_speed(self.speed), longest)
        with catch_signals() as stop, self.hub() as hub:
            self.link(hub)
            outlet = Outlet(hub, wait=self.wait, on_silence=self._report)
            replay = Replay(pace, outlet, self.time, stop, next=start)
            Thread(target=outlet.leave_on, args=(stop,), daemon=True).start()
            is_done = replay.run(records)
            row = _row(replay, place)
            self.say(row, "".join(text for name, text in _TEXTS if row[name]).format(**row))
            if not is_done:
                step = f"continue with --from {replay.next} and the same options"
                say(f"stopped before record {replay.next}; {step}", err=True)
            confirm(hub)
        return 0

    def _report(self, topic: str, count: int) -> None:
        """Report that it waits for a subscriber, or that none subscribed in time."""
        if count > 0:
            say(f"no node subscribes to {topic}; waiting for {self.wait:g} s", err=True)
        else:
            text = f"no node subscribed to {topic}: messages without a subscriber are unheard"
            say(text, err=True)


def _row(replay: "Replay", place: str) -> dict[str, Any]:
    """Return the counts; `records` is the sum of the next three."""
    return {
        "log": place,
        "records": replay.played + replay.damaged,
        "handed": replay.outlet.handed,
        "unheard": replay.outlet.unheard,
        "unfit": replay.unfit,
        "untimed": replay.untimed,
        "out_of_order": replay.pace.behind,
        "late": round(replay.late, 3),
        "next": replay.next,
    }


_TEXTS: Final = (
    ("log", "{log}: {records:,} records = {handed:,} handed + {unheard:,} unheard"),
    ("log", " + {unfit:,} unfit; at most {late:g} s late"),
    ("untimed", ", {untimed:,} without a time"),
    ("out_of_order", ", {out_of_order:,} out of order"),
)
