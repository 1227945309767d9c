"""Hashes of mosquitto_passwd, made with mosquitto 2.0.11 and 1.6."""

import base64
import hashlib

import pytest

from callboard.mqtt.access.mosquitto_hash import MosquittoHash, parse_hash
from callboard.mqtt.access.scrypt import PasswordHash, hash_password

#: mosquitto_passwd -b FILE ann secret
PBKDF2 = (
    "$7$101$3mWx7hULhY1KOsDf$qXaxUEE9gMkdqu+wGVDqtHZKDLqraIhu1oHz"
    "/hCPt4+LanwXaDxr27iSMMpg1uXLWK0dFXNpM/NpcQyzHtp3Kw=="
)
SALT = bytes(range(12))
SHA512 = "$6${}${}".format(
    base64.b64encode(SALT).decode(),
    base64.b64encode(hashlib.sha512(b"secret" + SALT).digest()).decode(),
)


@pytest.mark.parametrize("line", [PBKDF2, SHA512])
def test_a_password_is_checked(line: str) -> None:
    stored = parse_hash(line)

    assert isinstance(stored, MosquittoHash)
    assert stored.verify(b"secret")
    assert not stored.verify(b"Secret")
    assert str(stored) == line
    assert "digest" not in repr(stored)


def test_scrypt_stays_the_form_of_new_passwords() -> None:
    assert isinstance(parse_hash(str(hash_password(b"x", cost=2))), PasswordHash)


@pytest.mark.parametrize(
    "line",
    [
        "$5$AAAA$AAAA",
        "$6$AAAA",
        "$6$AAAA$",
        "$6$1$AAAA$AAAA",
        "$7$AAAA$AAAA",
        "$7$0$AAAA$AAAA",
        "$7$99999999999$AAAA$AAAA",
        "$7$101$A$AAAA",
        "$",
    ],
)
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="mosquitto_passwd"):
        parse_hash(line)
