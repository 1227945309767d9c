"""Remote actors as local ones: nodes, links between them, proxies, names, remote spawn."""

if __name__ != "callboard.proxies":
    # Under a second name every class would exist twice, and neither would know the other's.
    what = "import callboard.proxies"
    raise ImportError(what, name=__name__)
