"""The way of a message: to a local actor, and to a remote one beyond a third node."""

from scripts.drawings.picture import Picture


def draw() -> str:
    """Return the picture."""
    picture = Picture(
        "The way of a message, to a local actor and to a remote one over a node in between."
    )
    picture.group(8, 8, 504, 296, "*node A")
    picture.box(28, 40, 196, 48, "`ref.tell(message)", "~actors/reference.py", kind="blue")
    picture.box(292, 40, 200, 48, "the actor’s mailbox", "~actors/cell.py", kind="green")
    picture.arrow((224, 64), (290, 64))
    picture.text(258, 58, "~local", "middle")
    picture.lines(292, 110, "~a local message is appended", "~as it is: no copy")
    picture.arrow((126, 88), (126, 128))
    picture.text(134, 112, "~remote")
    picture.box(28, 130, 196, 48, "its proxy", "~proxies/lifetime/proxy.py")
    picture.arrow((126, 178), (126, 190))
    picture.box(28, 192, 196, 48, "serialized once, counted", "~proxies/traffic/outgoing.py")
    picture.lines(
        240,
        206,
        "~on the caller’s thread, so what the caller",
        "~changes later is not sent; the header has",
        "~60 bytes and the destination’s node id",
    )
    picture.arrow((126, 240), (126, 252))
    picture.box(28, 254, 196, 42, "written with others", "~proxies/link/stream.py")
    picture.arrow((126, 296), (126, 340), kind="blue")
    picture.text(138, 326, "~TCP or a Unix socket")
    picture.group(8, 316, 504, 96, "")
    picture.text(502, 334, "*node B, in between", "end")
    picture.box(
        28,
        342,
        196,
        60,
        "not for me: next hop",
        "bytes stay as they are",
        "~proxies/traffic/forwarding.py",
    )
    picture.lines(
        240, 366, "~the header is compared, the payload is", "~never decoded on the way"
    )
    picture.arrow((126, 402), (126, 448), kind="blue")
    picture.group(8, 424, 504, 212, "")
    picture.text(502, 442, "*node C", "end")
    picture.box(28, 450, 196, 48, "frames of one read", "~basp/link.py")
    picture.arrow((126, 498), (126, 512))
    picture.box(28, 514, 196, 48, "for me: decoded once", "~proxies/traffic/incoming.py")
    picture.lines(
        240,
        528,
        "~delivered in the order in which they were",
        "~sent, also when the path moves; counted,",
        "~and the count is reported to node A",
    )
    picture.arrow((126, 562), (126, 578))
    picture.box(28, 580, 196, 48, "the actor’s mailbox", "~actors/cell.py", kind="green")
    picture.arrow((224, 604), (290, 604))
    picture.box(292, 580, 200, 48, "its handler", "~one message at a time", kind="green")
    return picture.svg()
