"""Password hashes: scrypt, one line of text per hash.

The line is `scrypt$N$r$p$SALT$HASH`, with salt and hash in base64. It contains the cost, so the
cost can be raised for new passwords while old hashes remain valid.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import field, replace
from typing import Final

from callboard.support.dataclass import dataclass

#: Scrypt's N: 16 MiB and about 40 ms for each attempt.
COST: Final = 1 << 14
_BLOCK: Final = 8
_PARALLEL: Final = 1
_LENGTH: Final = 32
_SALT: Final = 16
#: Bytes of memory that checking a line of the file may use.
_MOST_MEMORY: Final = 256 * 1024 * 1024
_NO_HASH: Final = "it is not a scrypt hash; make one with 'callboard mqtt passwd'"


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """The stored hash of a password."""

    cost: int
    block: int
    parallel: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def parse(cls, line: str) -> "PasswordHash":
        """Parse a line.

        Raises:
            ValueError: the line is not valid, or checking it would use too much memory.
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
            message = "its parameters are not valid for scrypt"
            raise ValueError(message)
        if 128 * cost * block * parallel > _MOST_MEMORY:
            message = f"checking it would use more than {_MOST_MEMORY >> 20} MiB"
            raise ValueError(message)
        return cls(cost, block, parallel, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt${self.cost}${self.block}${self.parallel}${salt}${digest}"

    def verify(self, password: bytes) -> bool:
        """Return whether a password is right; takes the same time for all passwords."""
        digest = self._derive(password, len(self.digest))
        return hmac.compare_digest(digest, self.digest)

    def _derive(self, password: bytes, length: int) -> bytes:
        """Return the hash of a password with this cost and salt."""
        costs = {"n": self.cost, "r": self.block, "p": self.parallel}
        return hashlib.scrypt(
            password, salt=self.salt, **costs, maxmem=2 * _MOST_MEMORY, dklen=length
        )


def hash_password(password: bytes, cost: int = COST) -> PasswordHash:
    """Return the salted hash of a password."""
    bare = PasswordHash(cost, _BLOCK, _PARALLEL, secrets.token_bytes(_SALT), b"")
    return replace(bare, digest=bare._derive(password, _LENGTH))  # noqa: SLF001
