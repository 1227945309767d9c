"""Captions of charts: date, machine and versions of the measurement."""

from collections.abc import Collection, Iterator
from typing import Any, Final

_ALWAYS: Final = ("callboard", "Python")
#: How these names are written.
_PROPER: Final = {"Intel(R) Xeon(R) Processor": "Intel Xeon"}


def surroundings(report: dict[str, Any], subjects: Collection[str] = ()) -> str:
    """Return the date, the machine and the versions, including those of the subjects."""
    machine = report["machine"]
    processor = _PROPER.get(machine["processor"], machine["processor"])
    words = f"{machine['taken'][:10]}, {machine['cores']} cores ({processor})"
    return f"{words}, {machine['memory_gib']} GiB. {', '.join(_versions(report, subjects))}."


def _versions(report: dict[str, Any], subjects: Collection[str]) -> Iterator[str]:
    """Return each version, callboard's with its commit."""
    for name, version in report["versions"].items():
        if name in _ALWAYS or any(each.startswith(name) for each in subjects):
            yield f"{name} {version}"
