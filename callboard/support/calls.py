"""Types of calls that are stored or forwarded, so their arguments are not known here."""

from collections.abc import Callable, Coroutine
from typing import Any

#: The positional arguments of a call.
Arguments = tuple[Any, ...]

#: The keyword arguments of a call.
Keywords = dict[str, Any]

#: A call for its effect, with all arguments bound; its result is ignored.
Action = Callable[[], object]

#: A function that is called for its effect with arguments that are kept beside it.
Callback = Callable[..., object]

#: A coroutine that is run to its end for a caller who knows its result.
AnyCoroutine = Coroutine[Any, Any, Any]
