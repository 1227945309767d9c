"""Read configurations from files and the environment, and report all mistakes at once.

`host_port` imports nothing heavy. `reading` loads pydantic and tomllib, so only commands and
code that reads a file import it.
"""
