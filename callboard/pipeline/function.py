"""Functions in files of users as queries: `FILE.py:FUNCTION`.

    from callboard.pipeline import pipeline

    @pipeline(schema="origin string, delay double, at timestamp", time="at")
    def delayed(rows):
        return rows.where("delay > 60").selectExpr("concat('/delayed/', origin) AS topic", "*")

It takes rows with all columns of records and those of its schema, and returns rows for the
log of results. A second parameter takes the `Settings` of the command line. Without a schema
there is a column `value`, the number in the payload's field of `--field`.
"""

import functools
import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.failure import reason_of
from callboard.pipeline.queries import Query, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = TypeVar("Function", bound=Callable[..., Any])

_STATED: Final = "callboard_pipeline"


@dataclass(frozen=True, slots=True)
class Stated:
    """What a function says that it reads; options of the command go before it.

    Attributes:
        schema: Fields of payloads with their types, as Spark's DDL.
        time: The field that holds the event time; "" is the time of the record.
        topics: Beginnings of topics; none is all.
    """

    schema: str = ""
    time: str = ""
    topics: tuple[str, ...] = ()


def pipeline(
    schema: str = "", *, time: str = "", topics: Sequence[str] = ()
) -> Callable[[Function], Function]:
    """Return a decorator that says what a function of `callboard pipeline run` reads.

    Args:
        schema: Fields of payloads with their types, like `origin string, delay double`.
        time: The field that holds the event time; the time of the record by default.
        topics: Beginnings of topics; all by default.
    """
    if callable(schema):
        what = "write @pipeline(schema=…) with brackets; what it states stands in them"
        raise InvalidSetting(what)
    named = (topics,) if isinstance(topics, str) else tuple(topics)

    def state(function: Function) -> Function:
        setattr(function, _STATED, Stated(schema, time, named))
        return function

    return state


def stated_by(query: Query) -> Stated | None:
    """Return what the function of a query says that it reads; None if it is a ready query."""
    return stated_of(query.build)


def stated_of(function: Callable[..., Any]) -> Stated | None:
    """Return what a function says that it reads; None if it says nothing."""
    return getattr(function, _STATED, None)


def load_function(name: str) -> Query:
    """Return the function of a file, `FILE.py:FUNCTION`, as a query.

    Raises:
        InvalidSetting: there is none, or the file does not load.
    """
    path, _, called = name.rpartition(":")
    if not Path(path).is_file():
        what = f"there is no file {path}; give FILE.py:FUNCTION"
        raise InvalidSetting(what)
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:  # as `python FILE.py` has it
        sys.path.insert(0, folder)
    try:
        found = runpy.run_path(path)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a user's file does
        what = f"{path} does not load: {_raised(error, path)}; mend it"
        raise InvalidSetting(what) from None
    function = found.get(called)
    if not callable(function):
        mine = [
            key for key, each in found.items() if inspect.isfunction(each) and key[0] != "_"
        ]
        has = f"it has {', '.join(mine)}" if mine else "it takes rows and settings"
        what = f"{path} has no function {called!r}; {has}"
        raise InvalidSetting(what)

    @functools.wraps(function)
    def build(rows: "DataFrame", settings: Settings) -> "DataFrame":
        return _called(name, function, rows, settings)

    if stated_of(build) is None:
        setattr(build, _STATED, Stated())
    uses = frozenset(Settings.__slots__)
    return Query(build, needs_values=False, help=function.__doc__ or "", uses=uses)


def _called(
    name: str, function: Callable[..., Any], rows: "DataFrame", settings: Settings
) -> "DataFrame":
    """Return the results of a function, checked."""
    from pyspark.sql import DataFrame

    try:
        takes = inspect.signature(function)
        try:
            takes.bind(rows, settings)
            given: tuple[Any, ...] = rows, settings
        except TypeError:
            given = (rows,)
        results = function(*given)
    except Exception as error:  # noqa: BLE001  # whatever a user's function does
        what = f"{name} failed: {_raised(error, name.rpartition(':')[0])}; mend it"
        raise InvalidSetting(what) from None
    if not isinstance(results, DataFrame):
        what = (
            f"{name} returned {type(results).__name__}; let it return rows for the log of"
            " results, a DataFrame"
        )
        raise InvalidSetting(what)
    if "topic" not in results.columns:
        what = (
            f"{name} returned rows without a topic; add the column, for instance"
            ' .withColumn("topic", lit("/results"))'
        )
        raise InvalidSetting(what)
    return results


def _raised(error: BaseException, path: str) -> str:
    """Return an error of a user's file and the line of the file that it came from."""
    own = Path(path).absolute()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if Path(each.filename).absolute() == own]
    line = lines[-1] if lines else getattr(error, "lineno", None)
    return reason_of(error).replace(";", ",") + (f" (line {line})" if line else "")
