"""Plain classes as messages: classes without a declaration of their wire form.

An instance is encoded as the name `plain:MODULE:QUALIFIED.NAME` and its attributes, if its
module is listed on both sides. The receiver looks up the class, creates an instance without
calling `__init__`, and sets the attributes; `__reduce__`, `__setstate__` and `__setattr__` are
never called. Instances may have different attributes, as in Python.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

from callboard.basp.errors import MalformedPayload, UnknownMessageType
from callboard.basp.registry import MessageRegistry, MessageType, NoteDropped

_PREFIX: Final = "plain:"
_CLASS: Final = "plain-class"

FindClass = Callable[[str, str], type | None]


class PlainType(MessageType):
    """The message type of a plain class."""

    def __init__(self, cls: type) -> None:
        super().__init__(f"{_PREFIX}{cls.__module__}:{cls.__qualname__}", cls)

    def written(self, value: Any) -> dict[str, object]:
        """Return the attributes."""
        return {**vars(value)}

    def names_of(self, value: object) -> tuple[str, ...]:
        """Return the names of the attributes of this instance."""
        return tuple(vars(value))

    def build(self, content: object, note_dropped: NoteDropped | None = None) -> object:
        """Create an instance with these attributes.

        Raises:
            MalformedPayload: the content is not a map of texts.
        """
        if type(content) is not dict or not all(type(name) is str for name in content):
            msg = f"{self.name}: attributes must be a map with texts as keys"
            raise MalformedPayload(msg)
        instance: object = object.__new__(self.cls)
        instance.__dict__.update(content)
        return instance


class ListedClass(MessageType):
    """Classes as values: encoded as their name, which the receiver looks up."""

    def __init__(self, kind: type, modules: frozenset[str], find: FindClass) -> None:
        super().__init__(_CLASS, kind)
        self._modules = modules
        self._find = find

    def written(self, value: Any) -> str:
        """Return the module and name of a class.

        Raises:
            LookupError: the class is not in a listed module.
        """
        module, qualified = value.__module__, value.__qualname__
        if module not in self._modules or self._find(module, qualified) is not value:
            raise LookupError(qualified)
        return f"{module}:{qualified}"

    def build(self, content: object, note_dropped: NoteDropped | None = None) -> object:
        """Return the class of a name.

        Raises:
            UnknownMessageType: its module is not listed or not imported here, or lacks the
                class.
        """
        if type(content) is not str:
            msg = f"a class must be encoded as its name, not as {type(content).__name__}"
            raise MalformedPayload(msg)
        module, _, qualified = content.partition(":")
        cls = self._find(module, qualified) if module in self._modules else None
        if cls is None:
            msg = (
                f"class {content[:80]!r} is not known here; import its module and list it: "
                f"SystemBase(messages=[{module[:80]!r}])"
            )
            raise UnknownMessageType(msg)
        return cls


class PlainRegistry(MessageRegistry):
    """The types of another registry, and plain classes of listed modules.

    Types that are registered in the other registry later are included, too.
    """

    def __init__(
        self,
        shared: MessageRegistry,
        modules: Collection[str],
        find: FindClass,
        surely: Collection[type] = (),
    ) -> None:
        """Create a registry.

        Args:
            shared: the registry of declared message types.
            modules: names of the modules whose plain classes are allowed.
            find: returns a class by module and qualified name, without importing anything.
            surely: plain classes that are allowed even if their module is not listed.
        """
        super().__init__()
        self.by_name = shared.by_name
        self.by_class = shared.by_class
        self.flat = shared.flat
        self.plain_flat = shared.plain_flat
        self.coded = shared.coded
        self._modules = frozenset(modules)
        self._find = find
        self._plain = {kind.name: kind for kind in map(PlainType, surely)}
        self._surely = frozenset(surely)

    def type_of(self, cls: type) -> MessageType | None:
        """Return the message type of a class, declared or plain."""
        kind = self.by_class.get(cls)
        if kind is None and issubclass(cls, type):
            return ListedClass(cls, self._modules, self._find)
        if kind is None and self._is_allowed(cls):
            plain = PlainType(cls)
            kind = self._plain.setdefault(plain.name, plain)
        return kind

    def type_named(self, name: object) -> MessageType | None:
        """Return the type of a name that is not of a declared type."""
        if name == _CLASS:
            return ListedClass(type, self._modules, self._find)
        if type(name) is not str or not name.startswith(_PREFIX):
            return None
        kind = self._plain.get(name)
        if kind is not None:
            return kind
        module, _, qualified = name.removeprefix(_PREFIX).partition(":")
        cls = self._find(module, qualified) if module in self._modules else None
        return None if cls is None else self.type_of(cls)

    def advice(self, cls: type) -> str:
        """Return advice how to allow a class."""
        if issubclass(cls, type):
            return "list the module that it names on both sides: SystemBase(messages=[…])"
        if not is_plain(cls):
            return super().advice(cls)
        return f"list its module on both sides: SystemBase(messages=[{cls.__module__!r}])"

    def _is_allowed(self, cls: type) -> bool:
        """Return whether a plain class is allowed as a message."""
        return cls in self._surely or (
            cls.__module__ in self._modules
            and is_plain(cls)
            and self._find(cls.__module__, cls.__qualname__) is cls
        )


def is_plain(cls: object) -> bool:
    """Return whether instances of a class consist only of their attributes."""
    if not isinstance(cls, type):
        return False
    maker: object = cls.__new__
    has_slots = any(vars(base).get("__slots__") for base in cls.__mro__)
    return maker is object.__new__ and bool(cls.__dictoffset__) and not has_slots
