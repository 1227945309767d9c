"""`callboard compat …`: run programs written for packages whose interface callboard has."""

import runpy
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from callboard.cli.cli_error import FAILED, UsageError
from callboard.cli.options import command, noun, option

app = noun()


@dataclass(frozen=True, kw_only=True)
class BrokerCompatOptions:
    """Protocol of the program's endpoints."""

    wire: str = option(
        "",
        "Protocol of peer() and listen() for peering with Zeek, such as zeek-2.",
        metavar="WIRE",
    )


@command(app)
def broker(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM.py", help="The program.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.")
    ] = None,
    *,
    options: BrokerCompatOptions,
) -> int:
    """Run an unchanged program that uses Zeek Broker's Python package, `import broker`.

    \b
    Examples:
      callboard compat broker -- detector.py --verbose
      callboard compat broker --wire zeek-2 -- detector.py
    """  # noqa: D301
    if not program.is_file():
        raise UsageError(
            why=f"there is no file {program}", step="give the path of a Python file"
        )
    import callboard.broker as package
    from callboard.broker import bro, zeek

    modules = {"": package, ".zeek": zeek, ".bro": bro, "._broker": package._broker}  # noqa: SLF001
    sys.modules.update({f"broker{name}": module for name, module in modules.items()})
    if options.wire:
        package.BrokerOptions.wire = options.wire
    sys.argv = [str(program), *(args or ())]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Exception as error:  # noqa: BLE001  # an error of the program, printed like Python's
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != str(program):
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        return FAILED
    return 0
