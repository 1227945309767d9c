"""What counts as a whole number: an int, but no bool."""

from callboard.endpoint.errors import UnsupportedData

__all__ = ["whole_number"]


def whole_number(value: object, what: str) -> int:
    """Return `value` as a plain int.

    Raises:
        UnsupportedData: it is a bool, or no int; the message starts with `what`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{what} is an int, not {type(value).__name__}"
        raise UnsupportedData(msg)
    return int(value)
