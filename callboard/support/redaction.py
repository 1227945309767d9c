"""Texts and values without what is secret in them: for errors, logs and pages.

A password gets into an error by the address that it stands in, or by the value that has a
mistake. Every part of the package that shows an address or a value of a configuration takes the
secret out here. Fields that hold secrets are out of the `repr` of their classes as well.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

#: Stands for what is secret.
HIDDEN: Final = "***"

#: Words in the names of keys, options and parameters whose values are secret.
_WORDS: Final = (
    r"pass(?:word|wd|phrase)|secret|token|credential|scram|authorization|signature"
    r"|(?:access|account|api|private|shared|secret|session)[_-]?key"
)
_NAME: Final = re.compile(_WORDS, re.IGNORECASE)
#: Names with such a word that say where a secret is: the place of a file, a text of a service.
_PLACE: Final = re.compile(r"(?:_file|_path|_folder|_endpoint)$", re.IGNORECASE)

#: A password before the host of an address; it may hold what ends an address elsewhere.
_USER: Final = re.compile(r"""\b([a-z][a-z0-9+.-]*://[^\s/?#@:'"]*):[^\s'"]*@""", re.IGNORECASE)
_PARAMETER: Final = re.compile(
    rf"""([?&;][\w.-]*(?:{_WORDS}|\bsig|key_?id)[\w.-]*=)[^\s&;'"#]+""", re.IGNORECASE
)


def is_secret(name: object) -> bool:
    """Return whether the value of a key is secret, by its name."""
    text = str(name)
    return _NAME.search(text) is not None and _PLACE.search(text) is None


def redacted(text: object) -> str:
    """Return a text in which the addresses have no password and no token.

    >>> redacted("postgresql://ann:pa@ss@db/shop?sslpassword=x is not there")
    'postgresql://ann:***@db/shop?sslpassword=*** is not there'
    """
    shown = str(text)
    if "://" in shown:
        shown = _USER.sub(rf"\1:{HIDDEN}@", shown)
        shown = _PARAMETER.sub(rf"\1{HIDDEN}", shown)
    return shown


#: What a library quotes in an error.
_QUOTED: Final = re.compile(r""""[^"]+"|'[^']+'""")
#: What stands in an address between the user's name and the last `@`, which may be damaged.
_CREDENTIALS: Final = re.compile(r"://[^:]*:(.*)@", re.DOTALL)


def redacted_error(text: object, address: str) -> str:
    """Return what a library says of an address, without pieces of the address' secrets.

    libpq quotes the piece of a damaged address that it stumbled over, which may be a part of
    the password alone.

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

    shown = _QUOTED.sub(replace, redacted(text))
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        shown = shown.replace(secret, HIDDEN)
    return shown


def hidden(value: Any, name: object = "") -> Any:
    """Return a value as it may be shown, with the secret ones in tables and lists left out."""
    if is_secret(name) and value is not None:
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: hidden(inner, key) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(inner) for inner in value]
    return redacted(value) if isinstance(value, str) else value
