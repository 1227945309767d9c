"""Modules that configurations name."""

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
