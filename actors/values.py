"""Names for types of values that may have any class."""

#: A message to an actor; its handlers declare the classes that they handle.
Message = object

#: The answer of a handler to an ask.
Answer = object

#: A report of a node: a dataclass of `callboard.events`, or of a package.
Event = object
