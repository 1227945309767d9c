"""SCRAM-SHA-256 (RFC 5802 and 7677): a client proves its password without sending it.

The stored keys let the router check a proof and prove its own identity, but they are useless
for logging in. They are one line of text, in the format of PostgreSQL: `SCRAM-
SHA-256$COUNT:SALT$STORED:SERVER`, with salt and keys in base64.

| from | message |
|---|---|
| client | `n,,n=USER,r=NONCE` |
| server | `r=NONCE and more,s=SALT,i=COUNT` |
| client | `c=biws,r=WHOLE NONCE,p=PROOF` |
| server | `v=SIGNATURE`, with the CONNACK or the last AUTH |
"""

import base64
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from collections.abc import Callable
from dataclasses import field
from typing import Final

from callboard.mqtt.access.authentication import Challenge, Proved, Step
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass

#: The name of the method.
SCRAM: Final = "SCRAM-SHA-256"
#: Rounds of PBKDF2, which clients compute at each login (RFC 7677 requires at least 4096).
COUNT: Final = 10_000
#: A line with more rounds is refused as a mistake.
MOST_ROUNDS: Final = 10_000_000
_SALT: Final = 16
_NONCE: Final = 18
_NO_LINE: Final = "not a SCRAM-SHA-256 line; make one with 'callboard mqtt passwd --scram'"


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """The stored keys of a password for this method."""

    count: int
    salt: bytes = field(repr=False)
    stored: bytes = field(repr=False)
    server: bytes = field(repr=False)

    @classmethod
    def parse(cls, line: str) -> "ScramKeys":
        """Parse a line.

        Raises:
            ValueError: the line is not valid.
        """
        try:
            name, cost, keys = line.split("$")
            count, salt = cost.split(":")
            stored, server = (base64.b64decode(key, validate=True) for key in keys.split(":"))
            parsed = cls(int(count), base64.b64decode(salt, validate=True), stored, server)
        except ValueError:
            raise ValueError(_NO_LINE) from None
        is_whole = len(stored) == len(server) == hashlib.sha256().digest_size and parsed.salt
        if name != SCRAM or not is_whole or not 0 < parsed.count <= MOST_ROUNDS:
            raise ValueError(_NO_LINE)
        return parsed

    def __str__(self) -> str:
        salt, stored, server = map(_text, (self.salt, self.stored, self.server))
        return f"{SCRAM}${self.count}:{salt}${stored}:{server}"


def make_keys(password: str, *, count: int = COUNT, salt: bytes | None = None) -> ScramKeys:
    """Return the keys for a password; with a random salt by default.

    Raises:
        ValueError: the password contains characters that systems encode differently.
    """
    salt = secrets.token_bytes(_SALT) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", prepare(password).encode(), salt, count)
    stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return ScramKeys(count, salt, stored, _hmac(salted, b"Server Key"))


def prepare(text: str) -> str:
    """Return a password or name in the normal form of RFC 4013.

    Raises:
        ValueError: the text contains forbidden characters.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    for char in normal:
        if any(is_prohibited(char) for is_prohibited in _PROHIBITED):
            message = f"the character U+{ord(char):04X} is not allowed in a password or a name"
            raise ValueError(message)
    return normal


_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)

#: The key for the salts of unknown names, which must be the same at each login.
_SECRET: Final = secrets.token_bytes(32)


@dataclass(eq=False, repr=False)
class ScramExchange:
    """One login.

    Attributes:
        find: returns the keys of a user.
        make_nonce: returns the router's half of the nonce.
    """

    find: Callable[[str], ScramKeys | None]
    make_nonce: Callable[[], str] = lambda: _text(secrets.token_bytes(_NONCE))
    _user: str = ""
    _is_known: bool = False
    _keys: ScramKeys | None = field(default=None, repr=False)
    _head: bytes = b""
    _nonce: str = ""
    _messages: bytes = b""

    def step(self, data: bytes) -> Step:
        """Handle the client's first message, or its last one."""
        try:
            return self._first(data) if self._keys is None else self._last(data)
        except ValueError:  # not a message of this method, or an invalid name
            return ReasonCode.NOT_AUTHORIZED

    def _first(self, data: bytes) -> Step:
        """Handle the client's first message; the answer has salt and nonce."""
        flag, identity, bare = data.decode().split(",", 2)
        name, nonce = (bare.split(",") + [""])[:2]
        if flag not in {"n", "y"} or name[:2] != "n=" or nonce[:2] != "r=" or not nonce[2:]:
            return ReasonCode.NOT_AUTHORIZED
        user = prepare(name[2:].replace("=2C", ",").replace("=3D", "="))
        if identity not in {"", f"a={name[2:]}"}:
            return ReasonCode.NOT_AUTHORIZED
        keys = self.find(user)
        self._user, self._is_known = user, keys is not None
        # An unknown name also gets a challenge: otherwise clients could find out which names
        # exist.
        self._keys = keys or ScramKeys(COUNT, _made_up_salt(user), b"", b"")
        self._head = f"{flag},{identity},".encode()
        self._nonce = nonce[2:] + self.make_nonce()
        salt = _text(self._keys.salt)
        server_first = f"r={self._nonce},s={salt},i={self._keys.count}"
        self._messages = f"{bare},{server_first},".encode()
        return Challenge(server_first.encode())

    def _last(self, data: bytes) -> Step:
        """Check the client's proof."""
        keys = self._keys
        assert keys is not None
        rest, _, proof = data.rpartition(b",p=")
        fields = rest.decode().split(",")
        if fields[:2] != [f"c={_text(self._head)}", f"r={self._nonce}"]:
            return ReasonCode.NOT_AUTHORIZED
        auth = self._messages + rest
        signature = _hmac(keys.stored, auth)
        received = base64.b64decode(proof, validate=True)
        if len(received) != len(signature):
            return ReasonCode.NOT_AUTHORIZED
        client_key = bytes(a ^ b for a, b in zip(received, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.sha256(client_key).digest(), keys.stored)
        if not is_right or not self._is_known:
            return ReasonCode.NOT_AUTHORIZED
        return Proved(self._user, f"v={_text(_hmac(keys.server, auth))}".encode())


def _made_up_salt(user: str) -> bytes:
    """Return the salt of an unknown name, always the same one."""
    return _hmac(_SECRET, user.encode())[:_SALT]


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
