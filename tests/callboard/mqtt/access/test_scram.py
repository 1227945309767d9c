"""SCRAM-SHA-256 without a connection: the example of RFC 7677, and all failures."""

import base64
import hashlib
import hmac

import pytest

from callboard.mqtt.access.authentication import Challenge, Proved
from callboard.mqtt.access.scram import COUNT, ScramExchange, ScramKeys, make_keys, prepare
from callboard.mqtt.wire.reason_code import ReasonCode

#: RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
LAST = (
    f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
).encode()
KEYS = {"user": make_keys("pencil", count=4096, salt=SALT)}


def exchange(keys=KEYS):
    return ScramExchange(keys.get, lambda: SERVER_NONCE)


def proof(exchange_, user, password, gs2="n,,", *, nonce="abc"):
    """Do the client's part as RFC 5802 says; return the server's answers."""
    bare = f"n={user},r={nonce}"
    first = exchange_.step(f"{gs2}{bare}".encode())
    if not isinstance(first, Challenge):
        return first, None
    said = first.data.decode()
    fields = dict(part.split("=", 1) for part in said.split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    rest = f"c={base64.b64encode(gs2.encode()).decode()},r={fields['r']}"
    message = f"{bare},{said},{rest}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    given = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    last = f"{rest},p={base64.b64encode(given).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
    return exchange_.step(last), b"v=" + base64.b64encode(expected)


def test_the_example_of_rfc_7677():
    login = exchange()

    assert login.step(FIRST) == Challenge(
        f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    )
    assert login.step(LAST) == Proved("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("gs2", ["n,,", "y,,", "n,a=user,"])
def test_both_sides_prove_that_they_know_the_password(gs2):
    answer, expected = proof(exchange(), "user", "pencil", gs2)

    assert answer == Proved("user", expected)


def test_a_wrong_password_and_an_unknown_name_fail_at_the_same_step():
    for user, password in (("user", "pen"), ("nobody", "pencil")):
        assert proof(exchange(), user, password)[0] is ReasonCode.NOT_AUTHORIZED


def test_an_unknown_name_gets_the_same_salt_each_time():
    first, second = (exchange().step(b"n,,n=nobody,r=x").data for _ in range(2))

    assert first == second
    assert f"i={COUNT}".encode() in first
    assert exchange().step(b"n,,n=someone,r=x").data != first


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff,,n=user,r=a",
        b"p=tls-unique,,n=user,r=a",
        b"n,a=other,n=user,r=a",
        b"n,,m=ext,n=user,r=a",
        b"n,,n=user",
        b"n,,n=user,r=",
        "n,,n=us\u0007er,r=a".encode(),
    ],
)
def test_a_first_message_of_another_form_is_refused(first):
    assert exchange().step(first) is ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize(
    "last",
    [
        b"",
        LAST.replace(b"c=biws", b"c=eSws"),
        LAST.replace(b"r=rO", b"r=rP"),
        LAST.replace(b"p=dH", b"p=dI"),
        LAST.replace(b"p=dHzb", b"p="),
        LAST.replace(b"p=dHzb", b"p=!"),
    ],
)
def test_a_last_message_that_does_not_fit_is_refused(last):
    login = exchange()
    login.step(FIRST)

    assert login.step(last) is ReasonCode.NOT_AUTHORIZED


def test_names_with_commas_and_equal_signs():
    keys = {"a,b=c": make_keys("x", count=4096)}

    answer, _ = proof(exchange(keys), "a=2Cb=3Dc", "x")

    assert answer.user == "a,b=c"


def test_keys_are_one_line_with_a_separate_salt():
    first, second = make_keys("x", count=4096), make_keys("x", count=4096)

    assert first.salt != second.salt
    assert str(first).startswith("SCRAM-SHA-256$4096:")
    assert ScramKeys.parse(str(first)) == first


@pytest.mark.parametrize(
    "line",
    [
        "plain",
        "SCRAM-SHA-1$4096:YQ==$YQ==:YQ==",
        "SCRAM-SHA-256$0:YQ==$YQ==:YQ==",
        "SCRAM-SHA-256$x:YQ==$YQ==:YQ==",
        "SCRAM-SHA-256$4096:YQ==$YQ==:YQ==",
        str(KEYS["user"]).replace("$4096:", "$99999999:"),
    ],
)
def test_a_line_that_holds_no_keys_is_refused(line):
    with pytest.raises(ValueError, match="passwd --scram"):
        ScramKeys.parse(line)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
    ],
)
def test_names_and_passwords_are_prepared_by_rfc_4013(text, prepared):
    assert prepare(text) == prepared


def test_control_characters_are_in_no_password():
    with pytest.raises(ValueError, match=r"U\+0007"):
        make_keys("\u0007")
