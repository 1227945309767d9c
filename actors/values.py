"""Values of any class, by the part that they play."""

#: A message to an actor; its handlers declare the classes that they handle.
Message = object

#: The answer of a handler to an ask.
Answer = object

#: A report of a node: a dataclass of `callboard.events`, or of a package.
Event = object
