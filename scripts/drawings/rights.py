"""Rights inside a cluster: from what a peer proves to what passes."""

from scripts.drawings.picture import Picture


def draw() -> str:
    """Return the picture."""
    picture = Picture(
        "Rights: a peer proves who it is, permissions give it rights, a gate lets frames pass."
    )
    picture.box(160, 8, 200, 32, "*a peer’s link", kind="blue")
    picture.arrow((260, 40), (260, 62))
    picture.box(
        90,
        64,
        340,
        48,
        "*What is proven on the link?",
        "a named secret, or a name in the certificate",
    )
    picture.arrow((260, 112), (260, 134))
    picture.box(
        90, 136, 340, 48, "*permissions", "~patterns of names, in order; the first that matches"
    )
    for x in (88, 260, 432):
        picture.arrow((260, 184), (x, 230))
    picture.box(
        8, 232, 160, 66, "*no match", "refused, both sides", "are told why", kind="warm"
    )
    picture.box(
        180,
        232,
        160,
        66,
        "*Rights.member()",
        "everything",
        "~as without permissions",
        kind="green",
    )
    picture.box(
        352, 232, 160, 66, "*Rights(…): a leaf", "nothing but what", "is named", kind="blue"
    )
    picture.arrow((432, 298), (432, 336))
    picture.box(
        180,
        338,
        332,
        66,
        "*its gate, at the member it is linked to",
        "speaks for itself only; carries nothing;",
        "sends to what it was given or may",
        kind="box",
    )
    picture.arrow((280, 404), (280, 444), kind="green")
    picture.arrow((430, 404), (430, 444), kind="warm")
    picture.text(272, 430, "~passes", "end")
    picture.text(438, 430, "~refused")
    picture.box(
        150,
        446,
        180,
        66,
        "names, spawn, send,",
        "topics, stores, logs,",
        "nodes in reach",
        kind="green",
    )
    picture.box(
        342,
        446,
        170,
        66,
        "NotPermitted",
        "an event, a figure,",
        "a line in the audit log",
        kind="warm",
    )
    return picture.svg()
