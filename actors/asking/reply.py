"""Senders of messages, and replies, which receive the outcome of a message.

Every message has a sender, or None. A sender is a cell, which does not receive an outcome, or a
`Reply`, which does. The reply to a local ask is its future; for an ask from another node it is
an object that sends the outcome there. All senders have the attributes below, so code that
handles messages need not distinguish their classes.
"""

from callboard.actors.values import Answer
from callboard.support.calls import Action


class MessageSender:
    """Base class of all senders; its attributes are right for an actor of this node."""

    __slots__ = ()

    @property
    def node(self) -> bytes:
        """The id of the node that the message came from; empty for this one."""
        return b""

    @property
    def sent_id(self) -> int:
        """The message id under which the ask left this node; 0 if it did not."""
        return 0

    @property
    def is_done(self) -> bool:
        """Whether the ask has an outcome."""
        return False

    @property
    def wants_reply(self) -> bool:
        """Whether a caller waits for the outcome; otherwise it is counted at most."""
        return False

    def encoded(self, value: Answer) -> Action | None:
        """Serialize an answer now, and return a function that sends it later.

        Returns None if the asker is on this node, so that the answer is not serialized.

        Raises:
            NotSerializable: the answer contains something that cannot be serialized.
            MessageTooLarge: the answer is larger than the caller accepts.
        """
        return None

    @property
    def origin(self) -> object:
        """The key with which the caller can give up the ask."""
        return self


class Reply(MessageSender):
    """Base class of senders that receive the outcome of their message."""

    __slots__ = ()

    @property
    def wants_reply(self) -> bool:
        """Whether a caller waits for the outcome; otherwise it is counted at most."""
        return True
