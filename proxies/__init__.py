"""Remote actors as local ones: nodes, links between them, proxies, names, remote spawn."""

if __name__ != "callboard.proxies":
    # Under a second name every class would exist twice, and each copy would reject the other's
    # objects.
    message = "import callboard.proxies"
    raise ImportError(message, name=__name__)
