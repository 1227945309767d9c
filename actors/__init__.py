"""Local actors on Thespian's actor class: mailboxes, dispatch by type, futures, supervision.

Importing this package also lets Thespian find the runtime by name: `ActorSystem("callboard")`.
"""

if __name__ != "callboard.actors":
    # Under a second name every class would exist twice, and objects of one class would not be
    # recognized as objects of the other.
    message = "import callboard.actors"
    raise ImportError(message, name=__name__)

from callboard.actors.thespian import SystemBase

__all__ = ["SystemBase"]
