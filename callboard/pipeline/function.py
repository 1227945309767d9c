"""User functions as queries: `FILE.py:FUNCTION`.

    from callboard.pipeline import pipeline

    @pipeline(schema="origin string, delay double, at timestamp", time="at")
    def delayed(rows):
        return rows.where("delay > 60").selectExpr("concat('/delayed/', origin) AS topic", "*")

A function receives rows with all columns of records and of its schema, and returns rows for
the log of results. An optional second parameter receives the `Settings` of the command line.
Without a schema there is a column `value`: the number in the payload's field `--field`.
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
from callboard.pipeline.queries import QueryKind, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = TypeVar("Function", bound=Callable[..., Any])

_STATED: Final = "callboard_pipeline"


@dataclass(frozen=True, slots=True)
class DeclaredInputs:
    """The inputs that a function declares; options of the command take precedence.

    Attributes:
        schema: Fields of payloads with their types, as Spark's DDL.
        time: The field with the event time; "" for the time of the record.
        topics: Prefixes of topics; empty for all.
    """

    schema: str = ""
    time: str = ""
    topics: tuple[str, ...] = ()


def pipeline(
    schema: str = "", *, time: str = "", topics: Sequence[str] = ()
) -> Callable[[Function], Function]:
    """Return a decorator that declares the inputs of a `callboard pipeline run` function.

    Args:
        schema: Fields of payloads with their types, like `origin string, delay double`.
        time: The field with the event time; by default the time of the record.
        topics: Prefixes of topics; by default all.
    """
    if callable(schema):
        msg = "@pipeline needs brackets: write @pipeline(schema=…)"
        raise InvalidSetting(msg)
    prefixes = (topics,) if isinstance(topics, str) else tuple(topics)

    def state(function: Function) -> Function:
        setattr(function, _STATED, DeclaredInputs(schema, time, prefixes))
        return function

    return state


def stated_by(query: QueryKind) -> DeclaredInputs | None:
    """Return the declared inputs of a query's function; None for a built-in query."""
    return stated_of(query.build)


def stated_of(function: Callable[..., Any]) -> DeclaredInputs | None:
    """Return the declared inputs of a function, or None."""
    return getattr(function, _STATED, None)


def load_function(name: str) -> QueryKind:
    """Load a function, `FILE.py:FUNCTION`, as a query.

    Raises:
        InvalidSetting: the file or the function is missing, or the file fails to load.
    """
    path, _, function_name = name.rpartition(":")
    if not Path(path).is_file():
        msg = f"there is no file {path}; pass FILE.py:FUNCTION"
        raise InvalidSetting(msg)
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:  # as with `python FILE.py`
        sys.path.insert(0, folder)
    try:
        namespace = runpy.run_path(path)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # user code can raise anything
        msg = f"{path} does not load: {_raised(error, path)}; correct it"
        raise InvalidSetting(msg) from None
    function = namespace.get(function_name)
    if not callable(function):
        function_names = [
            key
            for key, value in namespace.items()
            if inspect.isfunction(value) and key[0] != "_"
        ]
        names = ", ".join(function_names)
        hint = f"it has {names}" if names else "define one with the parameter rows"
        msg = f"{path} has no function {function_name!r}; {hint}"
        raise InvalidSetting(msg)

    @functools.wraps(function)
    def build(rows: "DataFrame", settings: Settings) -> "DataFrame":
        return _called(name, function, rows, settings)

    if stated_of(build) is None:
        setattr(build, _STATED, DeclaredInputs())
    uses = frozenset(Settings.__slots__)
    return QueryKind(build, needs_values=False, help=function.__doc__ or "", uses=uses)


def _called(
    name: str, function: Callable[..., Any], rows: "DataFrame", settings: Settings
) -> "DataFrame":
    """Call the function, and check its results."""
    from pyspark.sql import DataFrame

    try:
        signature = inspect.signature(function)
        try:
            signature.bind(rows, settings)
            arguments: tuple[Any, ...] = rows, settings
        except TypeError:
            arguments = (rows,)
        results = function(*arguments)
    except Exception as error:  # noqa: BLE001  # user code can raise anything
        msg = f"{name} failed: {_raised(error, name.rpartition(':')[0])}; correct it"
        raise InvalidSetting(msg) from None
    if not isinstance(results, DataFrame):
        msg = (
            f"{name} returned {type(results).__name__}; it must return a DataFrame with the"
            " rows for the log of results"
        )
        raise InvalidSetting(msg)
    if "topic" not in results.columns:
        msg = (
            f"{name} returned rows without a topic; add the column, for instance"
            ' .withColumn("topic", lit("/results"))'
        )
        raise InvalidSetting(msg)
    return results


def _raised(error: BaseException, path: str) -> str:
    """Return an error from user code with the line of the file that raised it."""
    own = Path(path).absolute()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).absolute() == own]
    line = lines[-1] if lines else getattr(error, "lineno", None)
    return reason_of(error).replace(";", ",") + (f" (line {line})" if line else "")
