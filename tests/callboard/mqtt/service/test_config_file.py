"""The configuration file: what it sets, and every mistake with its file and key."""

from pathlib import Path

import pytest

from callboard.mqtt import SessionPolicy
from callboard.mqtt.access.acl import Client, Ruled
from callboard.mqtt.access.scram import make_keys
from callboard.mqtt.access.scrypt import hash_password
from callboard.mqtt.router.limits import CustomSegment, ShareStrategy
from callboard.mqtt.service.config_file import (
    MqttConfigError,
    find_function,
    make_config,
    make_maps,
    make_security,
    read_config_file,
)
from callboard.mqtt.service.hub_door import TopicMap

HASH = hash_password(b"secret", cost=2)
WHOLE = f"""
name = "plant"
directory = "journal"
console = "127.0.0.1:0"

[[listeners]]
address = "127.0.0.1:1883"

[[listeners]]
address = "tls://0.0.0.0:8883"
certificate = "server.pem"
key = "server.key"
authority = "ca.pem"
client_certificates = true
tenants = true

[limits]
max_keepalive = 600
receive_maximum = 50
max_packet_size = 4096
share_strategy = "sticky"
message_rate = 100
reader_patience = 0
acknowledge_patience = 30
max_journal_size = 1000000
max_hold = 600

[auth]
anonymous = true
bans = ["host:192.0.2.0/24"]

[[users]]
name = "ann"
password = "{HASH}"

[[acl]]
user = "ann"
allow = ["publish up/%c", "down/#"]
deny = ["down/secret"]

[hooks]
publish = "builtins:print"

[[rules]]
filter = "temp/#"
function = "builtins:str"
topic = "text"
qos = 2

[[bridges]]
address = "tls://broker.example:8883"
username = "us"
password = "them"
version = "3.1.1"
  [[bridges.topics]]
  filter = "a/#"
  direction = "out"

[cluster]
sessions = "refer"

[node]
join = ["basp://127.0.0.1:4222"]

[[door]]
mqtt = "plant/"
endpoint = "/plant/"
values = "json"
"""


def write(tmp_path, text):
    path = tmp_path / "mqtt.toml"
    path.write_text(text)
    return path


def lines_of(tmp_path, text):
    path = write(tmp_path, text)
    with pytest.raises(MqttConfigError) as caught:
        make_config(read_config_file(path), tmp_path)
    return [line.removeprefix(f"{path}: ") for line in caught.value.lines]


def test_a_file_sets_everything(tmp_path):
    config = make_config(read_config_file(write(tmp_path, WHOLE)), tmp_path)

    assert config.name == "plant"
    assert config.directory == tmp_path / "journal"
    assert [each.address for each in config.listeners] == [
        "127.0.0.1:1883",
        "tls://0.0.0.0:8883",
    ]
    tls = config.listeners[1].tls
    assert (tls.certificate, tls.mutual) == (tmp_path / "server.pem", True)
    assert config.listeners[1].tenants
    assert config.limits.keep_alive == config.network_limits().keep_alive == 600
    assert config.limits.packet_size == config.network_limits().packet_size == 4096
    assert config.limits.receive_maximum == 50
    assert config.limits.share_strategy is ShareStrategy.STICKY
    assert config.limits.journal_bytes == 1_000_000
    assert (config.limits.acknowledge_patience, config.limits.max_hold) == (30, 600)
    assert (config.network.message_rate, config.network.reader_patience) == (100, 0)
    assert config.security.users["ann"].verify(b"secret")
    assert config.sessions is SessionPolicy.REFER
    assert config.security.bans.entries == ("host:192.0.2.0/24",)
    assert config.security.acl[0].deny == ("down/secret",)
    assert config.hooks.publish is print
    assert (config.rules[0].function, config.rules[0].qos) == (str, 2)
    assert config.bridges[0].parse() == ("broker.example", 8883, True)
    assert config.bridges[0].topics[0].direction == "out"
    assert config.bridges[0].version == "3.1.1"


def test_all_mistakes_are_told_with_their_key(tmp_path):
    text = """
    colour = "red"
    [[listeners]]
    address = "somewhere"
    [limits]
    receive_maximum = 0
    max_inflght = 5
    [[users]]
    name = "ann"
    password = "plain"
    [[acl]]
    allow = ["a/#/b"]
    [auth]
    bans = ["ann"]
    [[door]]
    mqtt = "plant"
    [[rules]]
    filter = "#/a"
    function = "no function"
    topic = "a/+"
    """

    lines = lines_of(tmp_path, text)

    assert [line.split(" = ")[0].split(": ")[0] for line in sorted(lines)] == sorted(
        [
            "acl.0.allow.0",
            "acl.0.user",
            "auth.bans.0",
            "colour",
            "door.0",
            "limits.max_inflght",
            "limits.receive_maximum",
            "listeners.0.address",
            "rules.0.filter",
            "rules.0.function",
            "rules.0.topic",
            "users.0.password",
        ]
    )
    assert any("limits.max_inflght: there is no such key" in line for line in lines)
    assert "acl.0.user: it has to be there" in lines
    assert any("write HOST:PORT" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "listeners"),
        ("listeners = []", "listeners"),
        ("x = ", "no TOML"),
        ('[[listeners]]\naddress = "tls://127.0.0.1:0"', "needs a certificate"),
        (
            '[[listeners]]\naddress = "127.0.0.1:0"\n[hooks]\nconnect = "no.such:function"',
            "there is no function no.such:function",
        ),
        (
            '[[listeners]]\naddress = "127.0.0.1:0"\n[hooks]\nconnect = "sys:version"',
            "is no function",
        ),
    ],
)
def test_one_mistake_is_one_line(tmp_path, text, said):
    (line,) = lines_of(tmp_path, text)

    assert said in line


def test_a_file_that_is_not_there_is_told():
    with pytest.raises(MqttConfigError, match="No such file"):
        read_config_file(Path("/no/such/file.toml"))


def test_a_reload_reads_users_rules_and_bans(tmp_path):
    security = make_security(read_config_file(write(tmp_path, WHOLE)))

    assert security.anonymous
    access = Ruled(Client("c", None, ""), security.acl, "ann")
    assert access.may_publish("up/c")
    assert not access.may_publish("down/secret")


def test_users_may_have_keys_for_scram_and_methods_are_functions(tmp_path):
    keys = make_keys("secret", count=4096)
    text = (
        '[[listeners]]\naddress = "127.0.0.1:0"\n[auth.methods]\nriddle = "builtins:str"\n'
        f'[[users]]\nname = "ann"\nscram = "{keys}"\n'
    )

    config = make_config(read_config_file(write(tmp_path, text)), tmp_path)

    assert config.methods == {"riddle": str}
    assert (config.security.users, config.security.scram) == ({}, {"ann": keys})
    (line,) = lines_of(tmp_path, text.replace("SCRAM-SHA-256$", "SCRAM-SHA-1$"))
    assert "passwd --scram" in line
    (line,) = lines_of(tmp_path, text[: text.index("scram")])
    assert "neither a password nor scram" in line


def test_the_door_is_a_map_of_topics(tmp_path):
    table = read_config_file(write(tmp_path, WHOLE))

    assert make_maps(table) == [TopicMap("plant/", "/plant/", values="json")]
    assert table.node.join == ["basp://127.0.0.1:4222"]


def test_functions_are_found_by_module_and_name():
    assert find_function("os.path:join")("a", "b") == "a/b"


def test_segments_of_some_filters_can_be_set(tmp_path: Path) -> None:
    file = tmp_path / "mqtt.toml"
    file.write_text(
        '[[listeners]]\naddress = "127.0.0.1:0"\n[auth]\nanonymous = true\n'
        '[[segments]]\nfilter = "log/#"\nmax_segment_count = 50\n'
    )

    limits = make_config(read_config_file(file), tmp_path).limits

    assert limits.custom_segments == (CustomSegment("log/#", segment_count=50),)
