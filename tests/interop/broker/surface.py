"""Prints the public surface of the package `broker` as JSON; for the interpreter that has it.

    /usr/bin/python3 tests/interop/broker/surface.py > tests/interop/broker/surface_1_4.json

Left out: modules that the package imports for itself, and what begins with an underscore.
"""

import inspect
import json
import sys

import broker


def members(kind):
    """Return the names and numbers of an enumeration of pybind11, or None."""
    found = getattr(kind, "__members__", None)
    if found is None:
        return None
    return {name: int(value) for name, value in sorted(found.items())}


def describe(kind):
    """Return the public attributes of a class; nested classes are described as well."""
    told = {"kind": "class", "attributes": {}}
    if members(kind) is not None:
        told["members"] = members(kind)
    for name in sorted(dir(kind)):
        if name.startswith("_") or name in told.get("members", ()):
            continue
        value = getattr(kind, name)
        if isinstance(value, type):
            told["attributes"][name] = describe(value)
        else:
            told["attributes"][name] = "method" if callable(value) else "value"
    return told


def surface():
    """Return what the package shows."""
    told = {}
    for name in sorted(dir(broker)):
        value = getattr(broker, name)
        if name.startswith("_"):
            continue
        if inspect.ismodule(value):
            if name in ("zeek", "bro"):
                told[name] = {
                    "kind": "module",
                    "attributes": {"Event": describe(value.Event)},
                }
            elif name == "Version":
                parts = sorted(part for part in dir(value) if not part.startswith("_"))
                told[name] = {
                    "kind": "class",
                    "attributes": {
                        part: "method" if callable(getattr(value, part)) else "value"
                        for part in parts
                    },
                }
        elif isinstance(value, type) and value.__module__.startswith("broker"):
            told[name] = describe(value)
        elif callable(value) and not isinstance(value, type):
            told[name] = {"kind": "function"}
    return told


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=1, sort_keys=True)
    print()
