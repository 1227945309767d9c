"""The work of `callboard mqtt passwd`: a password that nobody sees, and what is kept of it."""

import json
import sys
from typing import Final

import typer

from callboard.cli.failure import MISUSED, Failure
from callboard.mqtt.scram import make_keys
from callboard.mqtt.scrypt import hash_password

_PIPE_IT: Final = "pipe one line of text into it, or run it in a terminal"


def ask_password() -> str:
    """Return the password: of a terminal, where it is asked for twice, or else a line of stdin.

    Raises:
        Failure: stdin holds none.
    """
    if sys.stdin.isatty():
        asked: str = typer.prompt(
            "Password", hide_input=True, confirmation_prompt=True, err=True
        )
        return asked
    line = sys.stdin.buffer.readline().rstrip(b"\r\n")
    try:
        password = line.decode()
    except UnicodeDecodeError as error:
        raise Failure(why="stdin is not UTF-8", step=_PIPE_IT, code=MISUSED) from error
    if not password:
        raise Failure(why="stdin holds no password", step=_PIPE_IT, code=MISUSED)
    return password


def user_entry(name: str, password: str, *, with_scram: bool, as_json: bool) -> str:
    """Return an entry of `[[users]]`, or the same as JSON.

    Raises:
        Failure: name or password is no text, or the password cannot be used with SCRAM.
    """
    step = "choose another password, or leave --scram out"
    try:
        name.encode()
        entry = {"name": name, "password": str(hash_password(password.encode()))}
        if with_scram:
            entry["scram"] = str(make_keys(password))
    except UnicodeEncodeError as error:
        why = "name and password have to be UTF-8"
        raise Failure(why=why, step="write them in another way", code=MISUSED) from error
    except ValueError as error:
        raise Failure(why=str(error), step=step, code=MISUSED) from error
    if as_json:
        return json.dumps(entry)
    lines = [f"{key} = {_toml_text(value)}" for key, value in entry.items()]
    return "\n".join(["[[users]]", *lines])


def _toml_text(text: str) -> str:
    # TOML has no surrogate pairs, and takes no DEL as it is (TOML 1.0, "String").
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
