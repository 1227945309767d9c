"""The handshake of one link: two nodes prove their identities, then agree on one link."""

from scripts.drawings.picture import Picture
from scripts.drawings.sequence import Sequence


def draw() -> str:
    """Return the picture."""
    picture = Picture(
        "The handshake: introduction and proof, then the choice of one link for each pair."
    )
    first = Sequence(picture, {"dialer": 90, "acceptor": 430})
    first.message("acceptor", "dialer", "server_handshake: nonce, is proof wanted")
    first.message("dialer", "acceptor", "client_handshake: nonce, proof")
    first.note("acceptor", "the dialer is identified", kind="green")
    first.message("acceptor", "dialer", "hello: proof")
    first.note("dialer", "the acceptor is identified", kind="green")
    first.end()
    y = first.y + 4
    picture.caption(
        y,
        "The node with the smaller id is the originator, whichever side dialed.",
        "~A link parks while its node has another one with this peer.",
    )
    second = Sequence(
        picture, {"originator/smaller node id": 90, "responder/larger node id": 430}, y + 34
    )
    second.message("originator", "responder", "originator_syn")
    second.message("responder", "originator", "responder_syn_ack: filters, routes, endpoint")
    second.message("originator", "responder", "originator_ack: the same of this side")
    second.note("responder", "established", kind="green")
    second.message("responder", "originator", "heartbeat, at once")
    second.note("originator", "sure of it: parked links are dropped", kind="green")
    second.end()
    return picture.svg()
