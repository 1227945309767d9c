"""What stands below each chart: when, where and with what its figures were measured."""

from collections.abc import Collection, Iterator
from typing import Any, Final

_ALWAYS: Final = ("callboard", "Python")
#: How these are written.
_PROPER: Final = {"Intel(R) Xeon(R) Processor": "Intel Xeon"}


def surroundings(report: dict[str, Any], subjects: Collection[str] = ()) -> str:
    """Tell the date, the machine and the versions, those of the subjects among them."""
    machine = report["machine"]
    processor = _PROPER.get(machine["processor"], machine["processor"])
    words = f"{machine['taken'][:10]}, {machine['cores']} cores ({processor})"
    return f"{words}, {machine['memory_gib']} GiB. {', '.join(_versions(report, subjects))}."


def _versions(report: dict[str, Any], subjects: Collection[str]) -> Iterator[str]:
    """Tell each version, ours with its commit."""
    for name, version in report["versions"].items():
        if name in _ALWAYS or any(each.startswith(name) for each in subjects):
            yield f"{name} {version}"
