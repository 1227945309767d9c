"""The front page: nodes, what they keep, and the doors to others, at a glance."""

from scripts.drawings.picture import Picture


def draw() -> str:
    """Return the picture."""
    picture = Picture(
        "callboard at a glance: three linked nodes with actors, of which one dies; what they "
        "keep; and the doors through which other programs come in."
    )
    for x, title in ((8, "*node shop"), (184, "*node kitchen"), (360, "*node cellar")):
        picture.group(x, 8, 152, 124, title)
    picture.box(20, 36, 128, 40, "*your class", "~an actor", kind="blue")
    picture.box(20, 82, 128, 40, "*your class", "~an actor", kind="blue")
    picture.box(196, 36, 128, 40, "*supervisor", "~starts it again", kind="green")
    picture.box(196, 82, 128, 40, "*your class", "~an actor", kind="blue")
    picture.box(372, 59, 128, 40, "*your class", "~died with its node", kind="warm")
    picture.cross(497, 18)
    picture.arrow((148, 102), (196, 102), both=True)
    picture.arrow((324, 102), (372, 86), both=True)
    picture.arrow((372, 68), (326, 56), kind="warm dash")
    picture.lines(
        8,
        152,
        "~Messages and asks between any two actors, over any number of",
        "~links. When a node dies, all who watch are told within a second,",
        "~and the balance of messages says what was lost with it.",
    )
    picture.group(8, 202, 504, 78, "*What survives a process")
    for number, (name, note) in enumerate(
        (
            ("entities", "actors with keys"),
            ("stores", "shared tables"),
            ("logs", "of messages, on disk"),
        )
    ):
        picture.box(20 + 164 * number, 228, 152, 42, f"*{name}", f"~{note}", kind="green")
    picture.group(8, 294, 504, 78, "*Doors for other programs")
    for number, (name, note) in enumerate(
        (
            ("MQTT", "devices"),
            ("Zeek", "events, logs"),
            ("Spark", "tables, streams"),
            ("flows", "with credit"),
        )
    ):
        picture.box(20 + 123 * number, 320, 115, 42, f"*{name}", f"~{note}")
    return picture.svg()
