"""Lines in an MQTT configuration that check passwords, and what SCRAM says."""

import base64
import hashlib
import hmac

from callboard.mqtt.access.scram import ScramExchange, ScramKeys, make_keys
from callboard.mqtt.access.scrypt import PasswordHash
from tests.golden.sample import Sample

PASSWORD, SALT, COUNT = "pencil ä", bytes(range(16)), 4096


def scrypt_line(password: str) -> bytes:
    digest = hashlib.scrypt(password.encode(), salt=SALT, n=1024, r=8, p=1, dklen=32)
    return str(PasswordHash(1024, 8, 1, SALT, digest)).encode()


def is_right(line: bytes) -> tuple[bool, bool]:
    found = PasswordHash.parse(line.decode())
    return found.verify(PASSWORD.encode()), found.verify(b"other")


def keys(password: str) -> ScramKeys:
    return make_keys(password, count=COUNT, salt=SALT)


def exchange(_: object, stored: ScramKeys | None = None) -> bytes:
    """Log in; returns what the router says, a line each."""
    router = ScramExchange({"user": stored or keys(PASSWORD)}.get, lambda: "theirs")
    bare = b"n=user,r=ours"
    challenge = router.step(b"n,," + bare).data
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), SALT, COUNT)
    client = hmac.digest(salted, b"Client Key", "sha256")
    last = b"c=biws,r=ourstheirs"
    said = b",".join((bare, challenge, last))
    signature = hmac.digest(hashlib.sha256(client).digest(), said, "sha256")
    proof = bytes(a ^ b for a, b in zip(client, signature, strict=True))
    proved = router.step(last + b",p=" + base64.b64encode(proof))
    return challenge + b"\n" + proved.data


SAMPLES = {
    "password": Sample(PASSWORD, scrypt_line, is_right, (True, False)),
    "keys of SCRAM": Sample(
        PASSWORD,
        lambda password: str(keys(password)).encode(),
        lambda line: exchange(None, ScramKeys.parse(line.decode())),
        exchange(None),
    ),
    "words of SCRAM": Sample(None, exchange, lambda said: said.split(b",")[0], b"r=ourstheirs"),
}


def missing() -> set[str]:
    """Return nothing: there are no other kinds of lines."""
    return set()
