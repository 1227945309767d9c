"""The work of `callboard log requeue`: which dead letters, and what became of them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from callboard.cli.options import JsonOptions, flag, option
from callboard.cli.problem import Problem
from callboard.commitlog import LogCorrupt

if TYPE_CHECKING:
    from callboard.pipeline.requeue import Requeued


@dataclass(frozen=True, kw_only=True)
class RequeueOptions(JsonOptions):
    """Which dead letters go back, and where."""

    to: str = option("", "Another log that takes them.", "--to", metavar="FOLDER")
    query: str = option("", "Only letters of this query: its name or id.", metavar="NAME")
    error: str = option("", "Only letters whose reason has this in it.", metavar="TEXT")
    topic: str = option("", "Only topics that begin so.", "--topic", metavar="PREFIX")
    since: str = option("", "Only records from this time on.", metavar="TIME")
    until: str = option("", "Only records before this time.", metavar="TIME")
    dry_run: bool = flag("Only tell what would be done.", "--dry-run")
    as_json: bool = flag("Print JSON, one object each log.", "--json")

    def run(
        self,
        folder: str,
        since: int | None,
        until: int | None,
        on_damage: Callable[[LogCorrupt], None],
    ) -> None:
        """Requeue the letters of a log that are wanted, of times in nanoseconds, and tell.

        Raises:
            Problem: there are none.
            PipelineError: a log that they come from is not here.
            LogError: a log cannot be read or written.
        """
        from callboard.pipeline.requeue import requeue
        from callboard.pipeline.spark.dead_letters import DeadLetter

        def wanted(letter: DeadLetter) -> bool:
            return (
                (not self.query or self.query in letter.origin[1:])
                and self.error in letter.reason
                and letter.topic.startswith(self.topic)
                and (since is None or letter.time >= since)
                and (until is None or letter.time < until)
            )

        found = requeue(
            folder, to=self.to, wanted=wanted, is_dry=self.dry_run, on_damage=on_damage
        )
        for each in found:
            self.say({**asdict(each), "dry_run": self.dry_run}, _line(each, self.dry_run))
        if not found:
            given = any((self.query, self.error, self.topic, since, until))
            what = "no such dead letters in" if given else "no dead letters in"
            step = (
                "see --query, --error, --topic, --since and --until"
                if given
                else "name the log of --dead-letters"
            )
            raise Problem(why=f"{what} {folder}", step=step)


def _line(told: "Requeued", is_dry: bool) -> str:  # noqa: FBT001
    """Return what became of the letters for one log."""
    verb = "records would be appended" if is_dry else "records appended"
    place = "" if told.first is None else f", {told.first} to {told.end}"
    same = told.letters - told.records - told.before
    return (
        f"{told.to}: {told.letters:,} letters, {told.records:,} {verb}{place}"
        + (f", {told.before:,} were requeued before" if told.before else "")
        + (f", {same:,} are of the same records" if same else "")
    )
