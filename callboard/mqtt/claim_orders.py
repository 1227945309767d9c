"""What routers of a cluster say to one another about sessions; see `claims`."""

import enum
from dataclasses import dataclass

from callboard.mqtt.handover import EncodedRecords
from proxies.messages import message


@message("callboard.mqtt.ClaimSession")
@dataclass(frozen=True, slots=True)
class ClaimSession:
    """A client connects to another router.

    Attributes:
        client_id: of the client.
        is_clean: whether it wants no session that was before.
        stamp: of this claim.
        held: the stamp of a session that is there; 0 for none.
    """

    client_id: str
    is_clean: bool
    stamp: int
    held: int = 0


@message("callboard.mqtt.ConfirmSession")
@dataclass(frozen=True, slots=True)
class ConfirmSession:
    """The session of an offer is durable elsewhere, with the stamp that it came with."""

    client_id: str
    offer: str
    stamp: int


@message("callboard.mqtt.SettleSession")
@dataclass(frozen=True, slots=True)
class SettleSession:
    """The router that took an offer knows that the session is its own; not answered."""

    client_id: str
    offer: str


Order = ClaimSession | ConfirmSession | SettleSession


@message("callboard.mqtt.NoSession")
@dataclass(frozen=True, slots=True)
class NoSession:
    """There is none here, or it was ended."""


@message("callboard.mqtt.SessionBusy")
@dataclass(frozen=True, slots=True)
class SessionBusy:
    """It cannot be given at the moment; the client may try again."""

    stamp: int


@message("callboard.mqtt.SessionElsewhere")
@dataclass(frozen=True, slots=True)
class SessionElsewhere:
    """It is here and stays; the client finds it at this address."""

    address: str
    stamp: int


@message("callboard.mqtt.SessionOffer")
@dataclass(frozen=True, slots=True)
class SessionOffer:
    """All of it, to be confirmed."""

    offer: str
    stamp: int
    records: EncodedRecords


@message("callboard.mqtt.Verdict")
class Verdict(enum.Enum):
    """What a router says to a confirmation."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@message("callboard.mqtt.SessionConfirmed")
@dataclass(frozen=True, slots=True)
class SessionConfirmed:
    """The answer to a confirmation; with a yes, what came in behind the offer."""

    verdict: Verdict
    records: EncodedRecords = ()


Answer = NoSession | SessionBusy | SessionElsewhere | SessionOffer | SessionConfirmed | None
