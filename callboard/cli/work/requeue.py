"""Implementation of `callboard log requeue`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from callboard.cli.cli_error import CliError
from callboard.cli.options import JsonOptions, flag, option
from callboard.commitlog import LogCorrupt

if TYPE_CHECKING:
    from callboard.pipeline.requeue import Requeued


@dataclass(frozen=True, kw_only=True)
class RequeueOptions(JsonOptions):
    """Selection of the dead letters, and their target."""

    to: str = option("", "Another log for the records.", "--to", metavar="FOLDER")
    query: str = option("", "Only letters of this query: its name or id.", metavar="NAME")
    error: str = option("", "Only letters with this text in their reason.", metavar="TEXT")
    topic: str = option("", "Only topics with this prefix.", "--topic", metavar="PREFIX")
    since: str = option("", "Only records from this time on.", metavar="TIME")
    until: str = option("", "Only records before this time.", metavar="TIME")
    dry_run: bool = flag("Only print what would be done.", "--dry-run")
    as_json: bool = flag("Print JSON, one object per log.", "--json")

    def run(
        self,
        folder: str,
        since: int | None,
        until: int | None,
        on_damage: Callable[[LogCorrupt], None],
    ) -> None:
        """Requeue the selected letters, and print the result; times are in nanoseconds.

        Raises:
            CliError: no letter is selected.
            PipelineError: a log that letters come from is not on this machine.
            LogError: a log cannot be read or written.
        """
        from callboard.pipeline.requeue import requeue
        from callboard.pipeline.spark.dead_letters import DeadLetter

        def is_selected(letter: DeadLetter) -> bool:
            return (
                (not self.query or self.query in letter.origin[1:])
                and self.error in letter.reason
                and letter.topic.startswith(self.topic)
                and (since is None or letter.time >= since)
                and (until is None or letter.time < until)
            )

        results = requeue(
            folder, to=self.to, wanted=is_selected, is_dry=self.dry_run, on_damage=on_damage
        )
        for result in results:
            self.say({**asdict(result), "dry_run": self.dry_run}, _line(result, self.dry_run))
        if not results:
            has_filter = any((self.query, self.error, self.topic, since, until))
            problem = "no such dead letters in" if has_filter else "no dead letters in"
            step = (
                "check --query, --error, --topic, --since and --until"
                if has_filter
                else "pass the log of --dead-letters"
            )
            raise CliError(why=f"{problem} {folder}", step=step)


def _line(result: "Requeued", is_dry: bool) -> str:  # noqa: FBT001
    """Return the result for one log as a line."""
    verb = "records would be appended" if is_dry else "records appended"
    place = "" if result.first is None else f", {result.first} to {result.end}"
    same = result.letters - result.records - result.before
    return (
        f"{result.to}: {result.letters:,} letters, {result.records:,} {verb}{place}"
        + (f", {result.before:,} were requeued earlier" if result.before else "")
        + (f", {same:,} are of the same records" if same else "")
    )
