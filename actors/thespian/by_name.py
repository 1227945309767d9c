"""`ActorSystem("callboard")`: the base under a name that Thespian finds.

Thespian imports `thespian.system.NAME` and calls its `ActorSystemBase(system, logDefs=…)`.
"""

import sys
import types
from collections.abc import Callable
from typing import Any, Final

from actors.thespian.system import SystemBase

MODULE: Final = "thespian.system.callboard"

#: Makes the base of a system with an 'Admin Port'; `proxies` sets it, since it takes a node.
open_to_others: list[Callable[[dict[str, Any], Any], SystemBase]] = []


def make_base(system: Any, logDefs: Any = None) -> SystemBase:
    """Make the base of an `ActorSystem`; it shares the system's capabilities."""
    if open_to_others and "Admin Port" in system.capabilities:
        base = open_to_others[-1](system.capabilities, logDefs or False)
    else:
        base = SystemBase(system.capabilities, logDefs or False)
    system.systemAddress = base.address
    return base


def register_by_name() -> None:
    """Enter the module that Thespian imports."""
    module = types.ModuleType(MODULE, "callboard's system base, by name")
    module.ActorSystemBase = make_base  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
