"""No password or token stands in an error, in a log, or in the repr of a class."""

import ast
import dataclasses
import importlib
import logging
import pkgutil
import re
import traceback
from collections import Counter
from pathlib import Path

import pytest

import callboard
from callboard.commitlog import LogReader
from callboard.configuration import reading
from callboard.entity.state.backends import open_state
from callboard.gateway.modules.http import HttpArguments
from callboard.lease.errors import StorageError
from callboard.mqtt import BridgeSettings, Credentials, ListenerSettings
from callboard.mqtt.access.admission import Peer
from callboard.mqtt.port.trace import show_packet
from callboard.mqtt.service.config_file import MqttConfigError, read_config_file
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.packet import V5, Connect
from callboard.operation.logs import JsonFormatter, PrintableFormatter
from callboard.support.redaction import HIDDEN, hidden, is_secret, redacted, redacted_error
from tests.sources import mentioning

ROOT = Path(callboard.__file__).parent
WORD = "hunter2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://ann:hunter2@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:hunt@er2@db:5432/shop", "postgresql://ann:***@db:5432/shop"),
        ("postgresql://ann:hunt/er2@db", "postgresql://ann:***@db"),
        ("redis://:hunter2@h:1/0 and no more", "redis://:***@h:1/0 and no more"),
        ("'mqtts://a:hunter2@h'", "'mqtts://a:***@h'"),
        ("ws://h/p?token=hunter2&a=1", "ws://h/p?token=***&a=1"),
        ("s3://b/k?secret_access_key=hunter2", "s3://b/k?secret_access_key=***"),
        ("https://h/?X-Amz-Signature=hunter2", "https://h/?X-Amz-Signature=***"),
        ("postgresql://h/d?sslpassword=hunter2", "postgresql://h/d?sslpassword=***"),
        ("postgresql://ann@db/shop", "postgresql://ann@db/shop"),
        ("basp:///7@00ff", "basp:///7@00ff"),
        ("basp://h:4222/7@00ff", "basp://h:4222/7@00ff"),
        ("basp://[::1]:4222/7@00ff", "basp://[::1]:4222/7@00ff"),
        ("write basp://HOST:PORT/NUMBER@NODE", "write basp://HOST:PORT/NUMBER@NODE"),
        ("basp://ann:hunter2@h:4222", "basp://ann:***@h:4222"),
        ("basp://h:1/till at 12:30", "basp://h:1/till at 12:30"),
        ("etcds://h:1?key=file.pem", "etcds://h:1?key=file.pem"),
        ("a:b@c", "a:b@c"),
    ],
)
def test_an_address_is_shown_without_secrets(text, expected):
    assert redacted(text) == expected
    assert redacted(expected) == expected


@pytest.mark.parametrize(
    ("text", "url", "expected"),
    [
        (
            'found in "hun ter2", use %20',
            "postgresql://a:hun ter2@db/s",
            'found in "***", use %20',
        ),
        ('token: "hun%zzter2"', "postgresql://a:hun%zzter2@db/s", 'token: "***"'),
        (
            "failed to resolve host 'ter2@db'",
            "postgresql://a:hun@ter2@db",
            "failed to resolve host '***'",
        ),
        ('port number: "hunter2"', "postgresql://a:hunter2/word@db/s", 'port number: "***"'),
        ('value "hunter2"', "postgresql://db/s?sslpassword=hunter2", 'value "***"'),
        ('user "hun ter2"', "postgresql://a:hun%20ter2@db", 'user "***"'),
        ("no hunter2 here", "postgresql://a:hunter2@db", "no *** here"),
        ('role "ann" is not there', "postgresql://ann:hunter2@db", 'role "ann" is not there'),
        ('host "db" is not known', "postgresql://ann@db", 'host "db" is not known'),
    ],
)
def test_an_error_shows_no_piece_of_a_secret_in_a_damaged_address(text, url, expected):
    assert redacted_error(text, url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hun ter2@127.0.0.1:1/shop",
        "postgresql://ann:hun%zzter2@127.0.0.1:1/shop",
        "postgresql://ann:hun@ter2@127.0.0.1:1/shop",
        "postgresql://ann:hun[ter2@127.0.0.1:x/shop",
        "postgresql://ann:hunter2@[127.0.0.1/shop",
        "postgresql://ann:hunter2/shop",
    ],
)
def test_a_database_address_that_is_damaged_shows_no_password(url):
    pytest.importorskip("psycopg")
    with pytest.raises(StorageError) as caught:
        open_state(url, "writer")

    shown = "".join(traceback.format_exception(caught.value))
    assert not re.search("hun|ter2", shown.replace("127.0.0.1", ""))


def test_values_are_shown_without_secret_ones():
    value = {"name": "ann", "password": WORD, "list": [{"api_key": WORD, "token_file": "f"}]}

    assert hidden(value) == {
        "name": "ann",
        "password": HIDDEN,
        "list": [{"api_key": HIDDEN, "token_file": "f"}],
    }


# --- classes ---

#: Fields with such a name that hold nothing secret.
PLAIN = {
    ("cli.mqtt", "MosquittoOptions", "passwords"): "path",
    ("cli.mqtt", "PasswordOptions", "scram"): "whether",
    ("proxies.messages", "BackUpNode", "token"): "the content of a file of one backup",
    ("entity.machine.job_queue", "JobQueue", "_tokens"): "numbers of attempts",
    ("entity.machine.job_queue", "_LoadedJob", "token"): "the number of an attempt",
    ("entity.machine.job_queue", "JobConsumer", "token"): "the number of an attempt",
    ("entity.queue.messages", "ExtendJob", "token"): "the number of an attempt",
    ("entity.queue.messages", "GiveBackJob", "token"): "the number of an attempt",
    ("entity.queue.messages", "RefuseJob", "token"): "the number of an attempt",
    ("entity.queue.messages", "TakeJob", "token"): "the number of an attempt",
    ("entity.queue.messages", "WithdrawTake", "token"): "the number of an attempt",
    ("entity.queue.work_queue", "_Done", "token"): "the number of an attempt",
    ("mqtt.wire.client", "Settled", "token"): "what a caller gave",
    ("store.machine.change", "Change", "token"): "what a caller gave",
}


def _modules():
    for found in pkgutil.walk_packages(callboard.__path__, "callboard."):
        if "__main__" not in found.name:
            try:
                yield importlib.import_module(found.name)
            except ImportError:
                continue  # of an extra that is not installed


def _shown_fields(cls):
    """Return the names of the fields that the repr of a class shows."""
    if dataclasses.is_dataclass(cls):
        return [each.name for each in dataclasses.fields(cls) if each.repr]
    if hasattr(cls, "model_fields"):
        return [name for name, each in cls.model_fields.items() if each.repr]
    is_named = issubclass(cls, tuple) and hasattr(cls, "_fields")
    own = "__repr__" in vars(cls) and vars(cls)["__repr__"].__module__ == cls.__module__
    return list(cls._fields) if is_named and not own else []


def test_no_class_shows_a_secret_field():
    shown = set()
    for module in _modules():
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__.startswith("callboard"):
                place = cls.__module__.removeprefix("callboard.")
                names = filter(is_secret, _shown_fields(cls))
                shown |= {(place, cls.__name__, name) for name in names}
    assert shown == set(PLAIN)


def test_other_names_of_secrets_are_recognized():
    from callboard.basp.handshake import LinkConfig
    from callboard.mqtt.access.scram import make_keys
    from callboard.mqtt.access.scrypt import hash_password
    from callboard.operation.permissions import PeerPermissions
    from callboard.proxies.rights.permissions import LinkAccess

    secret = WORD.encode()
    digest = hash_password(secret, cost=2)
    keys = make_keys(WORD, count=4096)
    for value in (
        LinkConfig(b"n" * 18, secret=secret, secrets=(("a", secret),)),
        LinkAccess((("", secret),)),
        PeerPermissions({"a": WORD}),
        Credentials("c", "ann", secret, Peer()),
        Connect("c", password=secret),
        BridgeSettings("h:1", password=secret),
        HttpArguments(listen="127.0.0.1:0", headers={"Authorization": WORD}),
    ):
        assert WORD not in repr(value)
    assert repr(digest.digest) not in repr(digest)
    assert repr(keys.stored) not in repr(keys)


# --- errors ---

USER = f'[[listeners]]\naddress = "127.0.0.1:0"\n[[users]]\nname = "ann"\npassword = "{WORD}"\n'

BRIDGE = '[[listeners]]\naddress = "127.0.0.1:0"\n[[bridges]]\naddress = "h:1"\n'


@pytest.mark.parametrize(
    "text",
    [
        USER,
        USER.replace(f'"{WORD}"', f'["{WORD}"]'),
        USER.replace("password", "scram"),
        USER.replace('name = "ann"', "name = 5"),
        USER.replace('name = "ann"\n', ""),
        USER.replace("[[users]]", "[users]"),
        USER.replace('"127.0.0.1:0"', f'"mqtt://ann:{WORD}@h:1"'),
        f'{USER.partition("[[users]]")[0]}users = ["ann", {{password = "{WORD}"}}]\n',
        f'{USER.partition("[[users]]")[0]}[[bridges]]\naddress = "h"\npassword = "{WORD}"\n',
        f'{USER.partition("[[users]]")[0]}[[bridges]]\naddress = "tls://a:{WORD}@h"\n',
        f'{BRIDGE}password = {{a="{WORD}"}}\n',
        f'{BRIDGE}version = "3.1.1"\npassword = "{WORD}"\n',
        f"{USER}{USER}",
        f'{USER}= "{WORD}"',
    ],
)
def test_a_mistake_in_a_configuration_shows_no_password(text, tmp_path):
    path = tmp_path / "mqtt.toml"
    path.write_text(text)

    with pytest.raises(MqttConfigError) as caught:
        read_config_file(path)

    error = caught.value
    while error is not None:
        assert WORD not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


URL = f"nothing://ann:{WORD}@h:1/x"


@pytest.mark.parametrize(
    "call",
    [
        lambda: open_state(f"mysql://ann:{WORD}@h/d", "w"),
        lambda: ListenerSettings(URL).parse(),
        lambda: BridgeSettings(URL).parse(),
        lambda: HttpArguments(get=f"ftp://ann:{WORD}@h"),
        lambda: LogReader(f"s4://ann:{WORD}@bucket/log"),
    ],
)
def test_an_error_about_an_address_shows_no_password(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of each part its own
        call()
    error = caught.value
    while error is not None:
        assert WORD not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def test_a_log_shows_no_password_of_an_address():
    record = logging.LogRecord("n", logging.INFO, "", 0, "no answer of %s", (URL,), None)
    for formatter in (PrintableFormatter("%(message)s"), JsonFormatter()):
        assert WORD not in formatter.format(record)


def test_a_trace_shows_no_password():
    data = encode(Connect("c", username="ann", password=WORD.encode(), version=V5), V5)

    shown = show_packet(data, V5)

    assert shown["username"] == "ann"
    assert WORD.encode().hex() not in str(shown)
    assert WORD not in str(shown)


#: How many texts have the address of one of our own pages or brokers, which has no password.
OWN_ADDRESSES = {
    "cli/pipeline.py": 1,
    "cli/work/log_archive.py": 1,
    "cli/work/zeek_logger.py": 1,
    "commitlog/reader.py": 1,
    "dashboard/server.py": 1,
    "gateway/broker.py": 3,
    "gateway/handle.py": 1,
}


def test_every_text_with_an_address_takes_its_password_out():
    plain = Counter()
    for path, tree in mentioning(ROOT, "url", "uri", "dsn"):
        name = str(path.relative_to(ROOT))
        if name.startswith(("simulation", "actors", "basp", "proxies")):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FormattedValue):
                text = ast.unparse(node.value)
                if re.fullmatch(r"(\w+\.)*_?(url|uri|dsn)", text):
                    plain[name] += 1
    assert plain == OWN_ADDRESSES


def test_a_mistake_of_the_whole_table_is_shown_without_its_secrets():
    class Account(reading.Table):
        name: str
        password: str

    with pytest.raises(ValueError, match="name") as caught:
        reading.check_values(
            Account,
            {"name": {"password": WORD}, "password": WORD},
            lambda ls: ValueError("; ".join(ls)),
            None,
        )
    assert WORD not in str(caught.value)
