"""`ActorSystem("callboard")`: the base under a name that Thespian finds.

Thespian imports `thespian.system.NAME` and calls its `ActorSystemBase(system, logDefs=…)`.
"""

import sys
import types
from typing import Any, Final

from actors.thespian.system import SystemBase

MODULE: Final = "thespian.system.callboard"


def make_base(system: Any, logDefs: Any = None) -> SystemBase:
    """Make the base of an `ActorSystem`; it shares the system's capabilities."""
    base = SystemBase(system.capabilities, logDefs or False)
    system.systemAddress = base.address
    return base


def register_by_name() -> None:
    """Enter the module that Thespian imports."""
    module = types.ModuleType(MODULE, "callboard's system base, by name")
    module.ActorSystemBase = make_base  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
