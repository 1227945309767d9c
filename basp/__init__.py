"""The Binary Actor System Protocol, pure: bytes and events in, effects out.

No sockets, no threads, no clock, no randomness: time, nonces and ids are arguments. Names are
imported from their modules.
"""

if __name__ != "callboard.basp":
    # Under a second name every class would exist twice, and neither would know the other's.
    what = "import callboard.basp"
    raise ImportError(what, name=__name__)
