"""Reading configurations: files and the environment, with every mistake at once.

`host_port` costs nothing to import. `reading` loads pydantic and tomllib: only commands, and
what reads a file, import it.
"""
