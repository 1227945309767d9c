"""Master and clones of a store: reads here, writes through the master."""

from scripts.drawings.picture import Picture


def draw() -> str:
    """Return the picture."""
    picture = Picture(
        "A store: clones send writes to the master, which sends every change to all clones."
    )
    picture.group(146, 8, 228, 128, "*node A")
    picture.box(166, 36, 188, 48, "*master", "~decides the order", kind="green")
    picture.box(166, 96, 188, 32, "file (SQLite), if any")
    picture.arrow((260, 84), (260, 95), both=False)
    for x, name in ((8, "B"), (286, "C")):
        picture.group(x, 236, 226, 138, f"*node {name}")
        picture.box(x + 20, 264, 186, 44, "*clone", "~a full copy", kind="blue")
        picture.box(x + 20, 330, 186, 34, "program")
    picture.arrow((70, 329), (70, 310), kind="warm")
    picture.text(78, 324, "~put")
    picture.arrow((180, 309), (180, 328))
    picture.text(172, 324, "~get", "end")
    picture.arrow((450, 309), (450, 328))
    picture.text(442, 324, "~get", "end")
    picture.arrow((128, 264), (128, 120), (164, 70), kind="warm")
    picture.text(120, 170, "*1", "end")
    picture.arrow((220, 136), (150, 262), kind="green")
    picture.text(196, 206, "*2")
    picture.arrow((300, 136), (390, 262), kind="green")
    picture.text(352, 190, "*2")
    picture.caption(
        400,
        "1. A write goes to the master, which carries it out once, however often it is sent.",
        "2. When it is durable it is acknowledged, and the change goes to all clones.",
        "~A read takes the copy of its own node; a clone sees its write when it has come back. "
        "await_idle() waits for that: on a clone for the master, on the master for all clones.",
    )
    return picture.svg()
