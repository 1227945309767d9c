# ruff: noqa: D102, FBT001, FBT002  # the signatures and their meaning are Thespian's
"""Thespian's `Actor` with types for checkers.

Thespian has no type information, and a class that derives from an untyped class has any
attribute for a checker, which would then find no mistake in a user's actor. At run time it is
Thespian's own class.
"""

from typing import TYPE_CHECKING

from callboard.support.calls import Keywords

if TYPE_CHECKING:
    import logging
    from datetime import timedelta
    from typing import Any

    from callboard.actors.reference import ActorRef

    class ThespianActor:
        """The methods of Thespian's class that actors inherit."""

        @property
        def myAddress(self) -> ActorRef: ...

        @property
        def globalName(self) -> str | None: ...

        def receiveMessage(self, msg: Any, sender: Any, /) -> Any: ...

        def createActor(
            self,
            actorClass: type | str,
            targetActorRequirements: Keywords | None = None,
            globalName: str | None = None,
            sourceHash: str | None = None,
        ) -> ActorRef: ...

        def wakeupAfter(self, timePeriod: timedelta | float, payload: Any = None) -> None: ...

        def handleDeadLetters(self, startHandling: bool = True) -> None: ...

        def updateCapability(
            self, capabilityName: str, capabilityValue: Any = None
        ) -> None: ...

        def notifyOnSystemRegistrationChanges(self, startHandling: bool = True) -> None: ...

        def preRegisterRemoteSystem(
            self, remoteAddress: Any, remoteCapabilities: Keywords
        ) -> None: ...

        def deRegisterRemoteSystem(self, remoteAddress: Any) -> None: ...

        def registerSourceAuthority(self) -> None: ...

        def notifyOnSourceAvailability(self, enable: bool = True) -> None: ...

        def loadActorSource(self, fname: Any) -> str: ...

        def unloadActorSource(self, sourceHash: str) -> None: ...

        def actorSystemShutdown(self) -> None: ...

        def logger(self, name: str | None = None) -> logging.Logger: ...

else:
    from thespian.actors import Actor as ThespianActor

__all__ = ["ThespianActor"]
