"""The MQTT router: connections at its edge, four objects that own its state, a journal."""

from scripts.drawings.picture import Picture


def draw() -> str:
    """Return the picture."""
    picture = Picture("The MQTT router: ports, four objects of the machine, and the journal.")
    for x, line in ((8, "publishers"), (346, "subscribers")):
        picture.box(x, 8, 166, 32, f"*{line}")
    picture.box(
        8,
        84,
        504,
        62,
        "*port: one connection for each client",
        "TCP, TLS, WebSocket, Unix socket; or a link in the process",
        "~who it is and what it may do: access",
    )
    picture.arrow((91, 40), (91, 82), kind="blue")
    picture.text(99, 66, "~packets")
    picture.arrow((429, 84), (429, 42), kind="green")
    picture.text(421, 66, "~packets", "end")
    picture.group(8, 190, 504, 262, "")
    picture.text(260, 470, "~the machine: pure, one turn for many packets", "middle")
    picture.arrow((91, 146), (91, 214), kind="blue")
    picture.text(99, 176, "~whole runs of packets, one wake-up")
    picture.box(28, 216, 126, 46, "*sessions", "~of clients")
    picture.arrow((154, 239), (192, 239))
    picture.box(194, 216, 132, 46, "*ingress", "~what comes in")
    picture.arrow((326, 239), (364, 239))
    picture.box(366, 216, 126, 46, "*delivery", "~who is ready")
    picture.arrow((429, 216), (429, 148), kind="green")
    picture.arrow((429, 262), (429, 316))
    picture.box(194, 318, 298, 116, kind="box")
    picture.text(206, 338, "*logs")
    picture.text(250, 338, "~one for each filter that a reader has")
    for row, (name, count) in enumerate((("cpu/#", 5), ("+/load", 3))):
        y = 348 + row * 40
        picture.text(206, y + 21, f"`{name}")
        for place in range(count):
            picture.box(274 + place * 30, y, 26, 30, kind="green")
    picture.lines(
        28,
        330,
        "Every message is",
        "kept once; logs hold",
        "places of it, readers",
        "an offset in a log.",
    )
    picture.box(28, 500, 298, 46, "*journal", "~each publish once; sessions, retained, wills")
    picture.arrow((110, 452), (110, 498), kind="warm")
    picture.text(118, 490, "*1")
    picture.caption(
        574,
        "A turn ends in this order: (1) what must outlive the router is durable in the "
        "journal, then clients get their acknowledgements and messages.",
    )
    return picture.svg()
