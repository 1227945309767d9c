"""Builds descriptions with the real Broker and tells what it makes of them; one line each.

Run by the interpreter that has the package `broker`: reads `repr` of a list of descriptions
(see tests/callboard/model/strategies.py), prints `repr` of the texts, types, values as
Python has them, and how each pair compares.
"""

import ast
import collections
import collections.abc
import sys

collections.Iterable = collections.abc.Iterable  # broker 1.4 was written for Python 3.9

import broker  # noqa: E402

MAKE = {
    "none": lambda _: None,
    "count": broker.Count,
    "real": float,
    "address": lambda value: broker.Address(*value),
    "subnet": lambda value: broker.Subnet(broker.Address(*value[0]), value[1]),
    "port": lambda value: broker.Port(value[0], broker.Port.Protocol(value[1])),
    "timestamp": lambda value: broker.Timestamp(float(value)),
    "timespan": broker.Timespan,
    "enum": broker.Enum,
}


def build(description):
    """Make the real data that a description tells of."""
    kind, value = description
    if kind == "set":
        return broker.Data(broker._broker.Set([build(item) for item in value]))
    if kind == "table":
        table = broker._broker.Table()
        for key, item in value:
            table[build(key)] = build(item)
        return broker.Data(table)
    if kind == "vector":
        return broker.Data(broker._broker.Vector([build(item) for item in value]))
    return broker.Data(MAKE.get(kind, lambda same: same)(value))


def attempt(function, value):
    """Print the result, or the type of the exception."""
    try:
        return function(value)
    except (TypeError, ValueError) as error:
        return type(error).__name__


def to_py(data):
    """Print the Python value as text."""
    return repr(broker.Data.to_py(data))


def names():
    """Print the members of each enumeration, the attributes of each class, and some texts."""
    counted = ("EC", "SC", "PeerStatus", "PeerFlags", "Backend", "Frontend")
    members = {
        name: {key: int(value) for key, value in getattr(broker, name).__members__.items()}
        for name in counted
    }
    classes = "Address Count Data Enum EndpointInfo Error NetworkInfo PeerInfo Port Set Status"
    classes += " Subnet Table Timespan Timestamp Topic Vector"
    attributes = {
        name: sorted(set(dir(getattr(broker, name))) - set(dir(object)))
        for name in classes.split()
    }
    joined = {
        (a, b): (broker.Topic(a) / broker.Topic(b)).string()
        for a in ("", "a", "a/", "/", "/a//")
        for b in ("", "b", "/b", "//", "b/")
    }
    event = broker.zeek.Event("name", 1, [broker.Count(2), {3}])
    texts = [str(broker.Status()), str(broker.Error()), str(event.as_data())]
    return {"members": members, "attributes": attributes, "joined": joined, "texts": texts}


def main():
    """Answer until the input ends."""
    for line in sys.stdin:
        asked = ast.literal_eval(line)
        if asked == "names":
            print(repr(names()), flush=True)
            continue
        data = [build(description) for description in asked]
        answer = {
            "text": [attempt(str, item) for item in data],
            "type": [item.get_type().name for item in data],
            "python": [attempt(to_py, item) for item in data],
            "less": [[a < b for b in data] for a in data],
            "equal": [[a == b for b in data] for a in data],
        }
        print(repr(answer), flush=True)


if __name__ == "__main__":
    main()
