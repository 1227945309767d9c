"""Configurations, and the modules that they name."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.callboard.gateway.cast import Failing, Recorder

#: The last module of each name.
made: dict[str, Any] = {}


class Kept(Recorder):
    def create(self, args: Any) -> None:
        super().create(args)
        made[self.name] = self


class Picky(Kept, Failing):
    pass


class Broken(Kept):
    def create(self, args: Any) -> None:
        super().create(args)
        error = "cannot be made"
        raise OSError(error)


def entry(name: str, kind: str = "Kept", **more: Any) -> dict[str, Any]:
    """Return a configuration's entry for a module of this file."""
    return {"name": name, "module": f"{__name__}:{kind}", **more}


def write(
    path: Path,
    *modules: dict[str, Any],
    links: Iterable[tuple[str, str]] = (),
    **more: Any,
) -> Path:
    """Write a configuration and return its path."""
    shown = [{"source": source, "sink": sink} for source, sink in links]
    path.write_text(json.dumps({"modules": list(modules), "links": shown, **more}))
    return path
