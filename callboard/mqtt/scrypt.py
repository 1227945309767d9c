"""Hashes of passwords: scrypt, as one line of text each.

`scrypt$N$r$p$SALT$HASH`, salt and hash in base64. The cost stands in the line, so it can be
raised for new passwords while old ones go on to work.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

COST: Final = 1 << 14
"""Scrypt's N: 16 MiB and some 40 ms for each attempt."""
_BLOCK: Final = 8
_PARALLEL: Final = 1
_LENGTH: Final = 32
_SALT: Final = 16
_MOST_MEMORY: Final = 256 * 1024 * 1024
"""Bytes that a line in the file may make us take."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """What is kept of a password."""

    cost: int
    block: int
    parallel: int
    salt: bytes
    digest: bytes

    @classmethod
    def parse(cls, line: str) -> "PasswordHash":
        """Read a line.

        Raises:
            ValueError: it is none, or asks for more memory than it may.
        """
        parts = line.split("$")
        if len(parts) != 6 or parts[0] != "scrypt":
            msg = "it is no scrypt hash; make one with 'callboard mqtt passwd'"
            raise ValueError(msg)
        try:
            cost, block, parallel = (int(part) for part in parts[1:4])
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[4:])
        except ValueError:
            msg = "it is no scrypt hash; make one with 'callboard mqtt passwd'"
            raise ValueError(msg) from None
        if cost < 2 or cost & (cost - 1) or block < 1 or parallel < 1 or not digest:
            msg = "its parameters are none of scrypt's"
            raise ValueError(msg)
        if 128 * cost * block * parallel > _MOST_MEMORY:
            msg = f"checking it would take more than {_MOST_MEMORY >> 20} MiB"
            raise ValueError(msg)
        return cls(cost, block, parallel, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt${self.cost}${self.block}${self.parallel}${salt}${digest}"

    def verify(self, password: bytes) -> bool:
        """Whether this is the password; takes the same time for any."""
        found = _scrypt(
            password, self.salt, self.cost, self.block, self.parallel, len(self.digest)
        )
        return hmac.compare_digest(found, self.digest)


def hash_password(password: bytes, cost: int = COST) -> PasswordHash:
    """Return the hash of a password with a salt of its own."""
    salt = secrets.token_bytes(_SALT)
    digest = _scrypt(password, salt, cost, _BLOCK, _PARALLEL, _LENGTH)
    return PasswordHash(cost, _BLOCK, _PARALLEL, salt, digest)


def _scrypt(
    password: bytes, salt: bytes, cost: int, block: int, parallel: int, length: int
) -> bytes:
    return hashlib.scrypt(
        password, salt=salt, n=cost, r=block, p=parallel, maxmem=2 * _MOST_MEMORY, dklen=length
    )
