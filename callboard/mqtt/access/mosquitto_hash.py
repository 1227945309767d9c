"""Password hashes of mosquitto's files, so that its users can move with their passwords.

`$6$SALT$HASH` is SHA-512 of password and salt; `$7$ROUNDS$SALT$HASH` is PBKDF2 with HMAC and
SHA-512. Salt and hash are in base64. Both are weaker than scrypt: a new password gets that.
"""

import base64
import hashlib
import hmac
from dataclasses import field
from typing import Final, Protocol

from callboard.mqtt.access.scrypt import PasswordHash
from callboard.support.dataclass import dataclass

#: Rounds of PBKDF2 that checking a line of a file may take; mosquitto's default is 101.
_MOST_ROUNDS: Final = 10_000_000


class StoredPassword(Protocol):
    """The hash of a password."""

    def verify(self, password: bytes) -> bool:
        """Return whether a password is right."""


@dataclass(frozen=True, slots=True)
class MosquittoHash:
    """The stored hash of a password, as mosquitto writes it.

    Attributes:
        rounds: rounds of PBKDF2; 0 for the older form.
        salt: random bytes.
        digest: the hash.
    """

    rounds: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def parse(cls, line: str) -> "MosquittoHash":
        """Parse a line, without the name of the user.

        Raises:
            ValueError: the line is not a hash of mosquitto.
        """
        message = "it is not a hash of mosquitto_passwd: $6$SALT$HASH or $7$ROUNDS$SALT$HASH"
        parts = line.split("$")
        try:
            empty, kind, *costs, salt_text, digest_text = parts
            (rounds,) = map(int, costs) if kind == "7" else (0,)
            salt = base64.b64decode(salt_text, validate=True)
            digest = base64.b64decode(digest_text, validate=True)
        except ValueError:
            raise ValueError(message) from None
        is_known = (kind == "7" and 0 < rounds <= _MOST_ROUNDS) or (kind == "6" and not costs)
        if empty or not is_known or not digest:
            raise ValueError(message)
        return cls(rounds, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"$7${self.rounds}${salt}${digest}" if self.rounds else f"$6${salt}${digest}"

    def verify(self, password: bytes) -> bool:
        """Return whether a password is right."""
        if self.rounds:
            digest = hashlib.pbkdf2_hmac(
                "sha512", password, self.salt, self.rounds, len(self.digest)
            )
        else:
            digest = hashlib.sha512(password + self.salt).digest()
        return hmac.compare_digest(digest, self.digest)


def parse_hash(line: str) -> PasswordHash | MosquittoHash:
    """Parse the hash of a password: scrypt, or one of mosquitto's forms.

    Raises:
        ValueError: the line is none of these.
    """
    return MosquittoHash.parse(line) if line.startswith("$") else PasswordHash.parse(line)
