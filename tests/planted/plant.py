"""A planted bug: a small change of one method, and the test that has to find it."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Plant:
    """One bug.

    Attributes:
        name: of the bug.
        scenario: the test of the program; it passes without the bug.
        owner: the class whose method is changed.
        method: its name.
        right: lines of its source.
        wrong: what stands there instead.
        error: how the test fails.
    """

    name: str
    scenario: Callable[..., object]
    owner: type
    method: str
    right: str
    wrong: str
    error: type[Exception]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug for a while."""
        function: Any = vars(self.owner)[self.method]
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.right) == 1, f"{self.right!r} is not once in {source}"
        made: dict[str, Any] = {}
        code = compile(source.replace(self.right, self.wrong), f"<{self.name}>", "exec")
        exec(code, function.__globals__, made)
        setattr(self.owner, self.method, made[self.method])
        try:
            yield
        finally:
            setattr(self.owner, self.method, function)
