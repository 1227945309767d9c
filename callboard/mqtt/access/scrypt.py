"""Hashes of passwords: scrypt, as one line of text each.

`scrypt$N$r$p$SALT$HASH`, salt and hash in base64. The cost stands in the line, so it can be
raised for new passwords while old ones go on to work.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import field, replace
from typing import Final

from callboard.support.dataclass import dataclass

#: Scrypt's N: 16 MiB and some 40 ms for each attempt.
COST: Final = 1 << 14
_BLOCK: Final = 8
_PARALLEL: Final = 1
_LENGTH: Final = 32
_SALT: Final = 16
#: Bytes that a line in the file may make us take.
_MOST_MEMORY: Final = 256 * 1024 * 1024
_NO_HASH: Final = "it is no scrypt hash; make one with 'callboard mqtt passwd'"


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """What is kept of a password."""

    cost: int
    block: int
    parallel: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def parse(cls, line: str) -> "PasswordHash":
        """Read a line.

        Raises:
            ValueError: it is none, or asks for more memory than it may.
        """
        try:
            name, *costs, salt_text, digest_text = line.split("$")
            cost, block, parallel = map(int, costs)
            salt = base64.b64decode(salt_text, validate=True)
            digest = base64.b64decode(digest_text, validate=True)
        except ValueError:
            raise ValueError(_NO_HASH) from None
        if name != "scrypt":
            raise ValueError(_NO_HASH)
        if cost < 2 or cost & (cost - 1) or block < 1 or parallel < 1 or not digest:
            message = "its parameters are none of scrypt's"
            raise ValueError(message)
        if 128 * cost * block * parallel > _MOST_MEMORY:
            message = f"checking it would take more than {_MOST_MEMORY >> 20} MiB"
            raise ValueError(message)
        return cls(cost, block, parallel, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt${self.cost}${self.block}${self.parallel}${salt}${digest}"

    def verify(self, password: bytes) -> bool:
        """Whether this is the password; takes the same time for any."""
        found = self._derive(password, len(self.digest))
        return hmac.compare_digest(found, self.digest)

    def _derive(self, password: bytes, length: int) -> bytes:
        """Return what a password gives at this cost and with this salt."""
        costs = {"n": self.cost, "r": self.block, "p": self.parallel}
        return hashlib.scrypt(
            password, salt=self.salt, **costs, maxmem=2 * _MOST_MEMORY, dklen=length
        )


def hash_password(password: bytes, cost: int = COST) -> PasswordHash:
    """Return the salted hash of a password."""
    bare = PasswordHash(cost, _BLOCK, _PARALLEL, secrets.token_bytes(_SALT), b"")
    return replace(bare, digest=bare._derive(password, _LENGTH))  # noqa: SLF001
