"""Topic names and topic filters: which are valid, and which filter matches which name.

Source: MQTT 5.0 sections 1.5.4 (UTF-8 strings) and 4.7 (topic names and filters); 3.1.1 has the
same rules. Slashes separate the levels of a name or filter; `+` matches one level, `#` at the
end the parent and all levels below. A filter that begins with a wildcard does not match names
that begin with `$`.
"""

from collections.abc import Iterator
from sys import getsizeof
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: The largest value of a string's length field.
MAX_TOPIC_BYTES: Final = 65_535

#: Levels of a name or filter; deeper ones would only cost memory.
MAX_LEVELS: Final = 200

#: Bytes of memory of a level in a tree, without its text; measured on 64-bit CPython.
LEVEL_BYTES: Final = 450

SHARE: Final = "$share/"


def is_valid_topic(topic: str) -> bool:
    """Return whether messages may be published to a name."""
    is_short = len(topic) <= MAX_TOPIC_BYTES and topic.count("/") < MAX_LEVELS
    return len(topic) > 0 and is_short and not has_wildcard(topic) and "\0" not in topic


def check_filter(topic_filter: str) -> None:
    """Check a filter as a person wrote it; it may be a shared one.

    Raises:
        ValueError: the filter is not valid; the text says why.
    """
    if is_valid_filter(topic_filter) and len(topic_filter.encode()) <= MAX_TOPIC_BYTES:
        return
    levels = topic_filter.split("/")
    mixed = next((level for level in levels if has_wildcard(level) and len(level) > 1), None)
    if mixed is not None:
        message = f"a wildcard must be a whole level, not {mixed!r}; write '+' or '#' alone"
    elif "#" in levels[:-1]:
        shorter = "/".join(levels[: levels.index("#") + 1])
        message = f"'#' must be the last level; write {shorter!r}, or '+' for one level"
    elif topic_filter.startswith(SHARE):
        message = "a shared filter is '$share/GROUP/FILTER'"
    elif not topic_filter or "\0" in topic_filter:
        message = "it is empty, or contains U+0000"
    else:
        message = f"it has more than {MAX_LEVELS} levels, or {MAX_TOPIC_BYTES:,} bytes"
    raise ValueError(message)


def is_valid_filter(topic_filter: str) -> bool:
    """Return whether a filter is valid; it may be a shared one."""
    if topic_filter.startswith(SHARE):
        group, plain = split_share(topic_filter)
        if not group or "+" in group or "#" in group:
            return False
        topic_filter = plain
    if not 0 < len(topic_filter) <= MAX_TOPIC_BYTES or "\0" in topic_filter:
        return False
    levels = topic_filter.split("/")
    if len(levels) > MAX_LEVELS or "#" in "".join(levels[:-1]):
        return False
    return all(level == "+" or "+" not in level for level in levels) and (
        levels[-1] == "#" or "#" not in levels[-1]
    )


def mounted(topic_filter: str, prefix: str) -> str:
    """Return a filter below a prefix, which follows the share of a shared subscription."""
    plain = split_share(topic_filter)[1]
    return f"{topic_filter.removesuffix(plain)}{prefix}{plain}"


def split_share(topic_filter: str) -> tuple[str, str]:
    """Return the group and the plain filter of `$share/GROUP/FILTER`; no group otherwise."""
    if not topic_filter.startswith(SHARE):
        return "", topic_filter
    group, _, plain = topic_filter[len(SHARE) :].partition("/")
    return group, plain


def overlap(first: str, second: str) -> bool:
    """Return whether some topic matches both of two valid filters without shares."""
    levels, other_levels = first.split("/"), second.split("/")
    for a, b in zip(levels, other_levels, strict=False):
        if "#" in {a, b}:
            return True
        if a != b and "+" not in {a, b}:
            return False
    longer = max(levels, other_levels, key=len)
    rest = longer[min(len(levels), len(other_levels)) :]
    return not rest or rest == ["#"]


def has_wildcard(topic_filter: str) -> bool:
    """Return whether a filter contains wildcards."""
    return "+" in topic_filter or "#" in topic_filter


def matches(topic: str, topic_filter: str) -> bool:
    """Return whether a plain valid filter matches a valid name."""
    if topic.startswith("$") and topic_filter[:1] in {"+", "#"}:
        return False
    names, levels = topic.split("/"), topic_filter.split("/")
    for position, level in enumerate(levels):
        if level == "#":
            return True
        if position == len(names) or level not in {"+", names[position]}:
            return False
    return len(names) == len(levels)


def weight_of_way(way: str) -> int:
    """Return the bytes of a name or filter in a tree that shares none of its levels."""
    levels = way.split("/")
    return getsizeof(way) + sum(LEVEL_BYTES + getsizeof(level) for level in levels)


class _Branch(Generic[T]):
    """A node of the tree: the names or filters that begin with the same levels."""

    __slots__ = ("below", "value")

    def __init__(self) -> None:
        self.below: dict[str, _Branch[T]] = {}
        self.value: T | None = None


class _Tree(Generic[T]):
    """Values by name or filter, both in a dictionary and in a tree of levels.

    Branches without values are removed.

    Attributes:
        values: the values by name or filter.
        weight: estimated bytes of memory, without the values.
    """

    def __init__(self) -> None:
        self.values: dict[str, T] = {}
        self.weight = 0
        self._root: _Branch[T] = _Branch()

    def __len__(self) -> int:
        return len(self.values)

    def set(self, way: str, value: T) -> None:
        """Set the value of a name or filter."""
        if way not in self.values:
            self.weight += getsizeof(way)
        self.values[way] = value
        branch = self._root
        for level in way.split("/"):
            below = branch.below
            following = below.get(level)
            if following is None:
                following = below[level] = _Branch()
                self.weight += LEVEL_BYTES + getsizeof(level)
            branch = following
        branch.value = value

    def remove(self, way: str) -> bool:
        """Remove a name or filter; return whether it existed."""
        if self.values.pop(way, None) is None:
            return False
        self.weight -= getsizeof(way)
        steps: list[tuple[_Branch[T], str]] = []
        branch = self._root
        for level in way.split("/"):
            steps.append((branch, level))
            branch = branch.below[level]
        branch.value = None
        for parent, level in reversed(steps):
            child = parent.below[level]
            if child.below or child.value is not None:
                break
            del parent.below[level]
            self.weight -= LEVEL_BYTES + getsizeof(level)
        return True


class FilterTree(_Tree[T]):
    """Plain filters with values; finds the filters that match a name, in O(levels)."""

    def match(self, topic: str) -> list[T]:
        """Return the values of all filters that match a name."""
        matching: list[_Branch[T]] = []
        branches = [self._root]
        for position, name in enumerate(topic.split("/")):
            following: list[_Branch[T]] = []
            for branch in branches:
                below = branch.below
                if position or name[:1] != "$":
                    if "#" in below:
                        matching.append(below["#"])
                    if "+" in below:
                        following.append(below["+"])
                if name in below and name not in {"+", "#"}:
                    following.append(below[name])
            branches = following
        for branch in branches:
            matching.append(branch)
            if "#" in branch.below:
                matching.append(branch.below["#"])
        return [branch.value for branch in matching if branch.value is not None]


class TopicTree(_Tree[T]):
    """Names with values; finds the names that a filter matches, without scanning the others."""

    def match(self, topic_filter: str) -> list[T]:
        """Return the values of all names that a plain filter matches."""
        if not has_wildcard(topic_filter):
            value = self.values.get(topic_filter)
            return [] if value is None else [value]
        branches = [self._root]
        levels = topic_filter.split("/")
        for position, level in enumerate(levels):
            if level == "#":
                return [
                    value
                    for branch in branches
                    for value in _values(branch, skips_dollar=position == 0)
                ]
            if level == "+":
                branches = [
                    child
                    for branch in branches
                    for name, child in branch.below.items()
                    if position or name[:1] != "$"
                ]
            else:
                branches = [b.below[level] for b in branches if level in b.below]
        return [branch.value for branch in branches if branch.value is not None]


def _values(branch: _Branch[T], *, skips_dollar: bool) -> Iterator[T]:
    """Return the values of a branch and of all branches below it."""
    waiting = [branch]
    while waiting:
        current = waiting.pop()
        if current.value is not None:
            yield current.value
        for name, child in current.below.items():
            if not (skips_dollar and current is branch and name[:1] == "$"):
                waiting.append(child)
