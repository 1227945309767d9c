"""Routing: a link breaks, and messages continue in order over another path."""

from scripts.drawings.picture import Picture


def node(picture: Picture, name: str, x: float, y: float, kind: str = "box") -> None:
    """Put a node."""
    picture.box(x - 26, y - 18, 52, 36, f"*{name}", kind=kind)


def draw() -> str:
    """Return the picture."""
    picture = Picture("Routing: a link breaks, and messages take the next best path, in order.")
    network(picture, 30, "*Before", is_cut=False)
    picture.caption(
        216,
        "Each node tells its neighbors its best path to every node, the whole path. "
        "The shortest wins; none takes a path through itself, so there are no loops.",
    )
    network(picture, 298, "*The link from B to E breaks", is_cut=True)
    picture.caption(
        484,
        "1. B tells of the cut. A’s next best path to E leads over C and D.",
        "2. A sends the end marker of the old path’s epoch over the new path.",
        "3. E holds messages of the new epoch until those of the old one have come, or their "
        "loss was noticed: order is kept, nothing comes twice.",
        "~Only when no path is left do asks fail and monitors fire, as unreachable.",
    )
    return picture.svg()


def network(picture: Picture, top: float, title: str, *, is_cut: bool) -> None:
    """Draw five nodes, and the path from A to E."""
    picture.text(8, top - 8, title)
    places = {
        "A": (60.0, top + 84), "B": (260.0, top + 34), "C": (180.0, top + 134),
        "D": (340.0, top + 134), "E": (460.0, top + 84),
    }  # fmt: skip
    used = ["AC", "CD", "DE"] if is_cut else ["AB", "BE"]
    for pair in ("AB", "BE", "AC", "CD", "DE"):
        begin, end = (places[name] for name in pair)
        if pair in used:
            far = (end[0] - begin[0], end[1] - begin[1])
            tip = 1 - 30 / (far[0] ** 2 + far[1] ** 2) ** 0.5
            picture.arrow(
                begin, (begin[0] + far[0] * tip, begin[1] + far[1] * tip), kind="blue"
            )
        else:
            picture.line(begin, end, kind="dash" if is_cut and pair == "BE" else "")
    if is_cut:
        picture.cross(360, top + 59)
    for name, (x, y) in places.items():
        node(picture, name, x, y, "blue" if name in "".join(used) else "box")
    picture.text(60, top + 120, "~sends", "middle")
    picture.text(460, top + 120, "~receives", "middle")
