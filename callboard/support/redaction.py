"""Removes secrets from texts and values, for errors, logs and pages.

A password can get into an error text with its address, or with an invalid value. All code that
shows an address or a value of a configuration passes it through this module. Fields with
secrets are also left out of the `repr` of their classes.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

#: Replaces a secret.
HIDDEN: Final = "***"

#: Words in the names of keys, options and parameters whose values are secret.
_WORDS: Final = (
    r"pass(?:word|wd|phrase)|secret|token|credential|scram|authorization|signature"
    r"|(?:access|account|api|private|shared|secret|session)[_-]?key"
)
_NAME: Final = re.compile(_WORDS, re.IGNORECASE)
#: Names with such a word that are not secret, because they are the location of a secret.
_LOCATION: Final = re.compile(r"(?:_file|_path|_folder|_endpoint)$", re.IGNORECASE)

#: The start of an address of an actor, `basp://HOST:PORT/NUMBER@NODE`, which has no password.
_ACTOR: Final = r"""basp://(?:\[[^\s\]]*\]|[^\s/?#@:'"]*):(?:\d+|PORT)/"""
#: A password before the host of an address. It may contain characters that end an address.
_USER: Final = re.compile(
    rf"""\b(?!{_ACTOR})([a-z][a-z0-9+.-]*://[^\s/?#@:'"]*):[^\s'"]*@""", re.IGNORECASE
)
_PARAMETER: Final = re.compile(
    rf"""([?&;][\w.-]*(?:{_WORDS}|\bsig|key_?id)[\w.-]*=)[^\s&;'"#]+""", re.IGNORECASE
)


def is_secret(name: object) -> bool:
    """Return whether a key has a secret value, judging by the name of the key."""
    text = str(name)
    return _NAME.search(text) is not None and _LOCATION.search(text) is None


def redacted(text: object) -> str:
    """Return a text without the passwords and tokens of the addresses in it.

    >>> redacted("postgresql://ann:pa@ss@db/shop?sslpassword=x is not there")
    'postgresql://ann:***@db/shop?sslpassword=*** is not there'
    """
    result = str(text)
    if "://" in result:
        result = _USER.sub(rf"\1:{HIDDEN}@", result)
        result = _PARAMETER.sub(rf"\1{HIDDEN}", result)
    return result


#: A quoted part of a library's error text.
_QUOTED: Final = re.compile(r""""[^"]+"|'[^']+'""")
#: The part of an address, even a malformed one, between the user's name and the last `@`.
_CREDENTIALS: Final = re.compile(r"://[^:]*:(.*)@", re.DOTALL)


def redacted_error(text: object, address: str) -> str:
    """Return a library's error text about an address, without parts of the address's secrets.

    libpq quotes the part of a malformed address that it could not parse, which may be a part
    of the password alone.

    >>> redacted_error('unexpected spaces found in "pa ss"', "postgresql://ann:pa ss@db/shop")
    'unexpected spaces found in "***"'
    """
    secrets = [match.group().partition("=")[2] for match in _PARAMETER.finditer(address)]
    if match := _CREDENTIALS.search(address):
        secrets.append(match.group(1))
    secrets += [unquote(secret) for secret in secrets]

    def replace(match: re.Match[str]) -> str:
        quoted = match.group()
        pieces = [piece for piece in re.split(r"[@:/?&]", quoted[1:-1]) if piece]
        is_of_secret = any(piece in secret for secret in secrets for piece in pieces)
        return f"{quoted[0]}{HIDDEN}{quoted[0]}" if is_of_secret else quoted

    result = _QUOTED.sub(replace, redacted(text))
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        result = result.replace(secret, HIDDEN)
    return result


def hidden(value: Any, name: object = "") -> Any:
    """Return a value without secrets, including those inside mappings and lists."""
    if is_secret(name) and value is not None:
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: hidden(inner, key) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(inner) for inner in value]
    return redacted(value) if isinstance(value, str) else value
