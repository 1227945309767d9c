"""The backends of stores, by their kinds.

A new kind needs a value of `Backend` in `interface`, its module, and a row here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from callboard.model.errors import InvalidData
from callboard.store.backend.interface import Backend, MemoryBackend, StoreBackend
from callboard.store.backend.sqlite import SqliteBackend, SqliteOptions


def make_backend(
    backend: Backend | StoreBackend, options: Mapping[str, Any] | None
) -> StoreBackend:
    """Return a backend object; create it if the user named its kind.

    Raises:
        InvalidData: the backend does not have an option.
    """
    return _MAKERS[backend](options or {}) if isinstance(backend, Backend) else backend


def _make_memory(options: Mapping[str, Any]) -> StoreBackend:
    """Return a backend in memory; any option is refused."""
    if options:
        msg = f"the memory backend does not have the option {next(iter(options))!r}"
        raise InvalidData(msg)
    return MemoryBackend()


def _make_sqlite(options: Mapping[str, Any]) -> StoreBackend:
    """Return a backend in a SQLite file."""
    return SqliteBackend(SqliteOptions.read(options))


_MAKERS: Final[Mapping[Backend, Callable[[Mapping[str, Any]], StoreBackend]]] = {
    Backend.Memory: _make_memory,
    Backend.SQLite: _make_sqlite,
}
