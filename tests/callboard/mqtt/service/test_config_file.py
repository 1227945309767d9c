"""The configuration file: its settings, and every mistake with its file and key."""

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
from callboard.mqtt.service.destination import Destination
from callboard.mqtt.service.topic_bridge import TopicMap

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


def test_every_mistake_is_reported_with_its_key(tmp_path):
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
    assert "acl.0.user: this key is required" in lines
    assert any("write HOST:PORT" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "listeners"),
        ("listeners = []", "listeners"),
        ("x = ", "not TOML"),
        ('[[listeners]]\naddress = "tls://127.0.0.1:0"', "needs a certificate"),
        (
            '[[listeners]]\naddress = "127.0.0.1:0"\n[hooks]\nconnect = "no.such:function"',
            "there is no function no.such:function",
        ),
        (
            '[[listeners]]\naddress = "127.0.0.1:0"\n[hooks]\nconnect = "sys:version"',
            "is not a function",
        ),
    ],
)
def test_each_mistake_is_one_line(tmp_path, text, said):
    (line,) = lines_of(tmp_path, text)

    assert said in line


def test_a_missing_file_is_reported():
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


def test_functions_are_resolved_by_module_and_name():
    assert find_function("os.path:join")("a", "b") == "a/b"


def test_segments_of_some_filters_can_be_set(tmp_path: Path) -> None:
    file = tmp_path / "mqtt.toml"
    file.write_text(
        '[[listeners]]\naddress = "127.0.0.1:0"\n[auth]\nanonymous = true\n'
        '[[segments]]\nfilter = "log/#"\nmax_segment_count = 50\n'
    )

    limits = make_config(read_config_file(file), tmp_path).limits

    assert limits.custom_segments == (CustomSegment("log/#", segment_count=50),)


LISTENER = '[[listeners]]\naddress = "127.0.0.1:1883"\n'


@pytest.mark.parametrize(
    ("text", "key", "advice"),
    [
        (
            '[[acl]]\nuser = "*"\nallow = ["#"]\ndeny = ["wirte secret/#"]',
            "acl.0.deny.0",
            "write",
        ),
        ('[[acl]]\nuser = "*"\nallow = ["deny a"]', "acl.0.allow.0", "deny"),
        ('[[acl]]\nuser = "*"\nallow = ["a/b"]\ndeny = ["a/#"]', "acl.0.allow.0", "covers"),
        (
            '[[acl]]\nuser = "*"\ndeny = ["write a"]\n[[acl]]\nuser = "ann"\nallow = ["write a"]',  # noqa: E501
            "acl.1.allow.0",
            "covers",
        ),
        (
            f'[[users]]\nname = "ann"\npassword = "{HASH}"\n[[acl]]\nuser = "anne"',
            "acl.0.user",
            "'ann'",
        ),
        (f'[[users]]\nname = "*"\npassword = "{HASH}"', "users.0.name", "name of a user"),
        (
            f'[[users]]\nname = "a"\npassword = "{HASH}"\n' * 2,
            "users.1.name",
            "there twice",
        ),
        (LISTENER, "listeners.1.address", "there twice"),
        (
            '[[listeners]]\naddress = "127.0.0.1:0"\ncertificate = "c"',
            "listeners.1.certificate",
            "tls://",
        ),
        (
            '[[listeners]]\naddress = "127.0.0.1:0"\nclient_certificates = true',
            "listeners.1.client_certificates",
            "tls://",
        ),
        (
            '[[listeners]]\naddress = "tls://127.0.0.1:0"\ncertificate = "c"\ntenants = true',
            "listeners.1.tenants",
            "client_certificates",
        ),
        (
            '[[listeners]]\naddress = "127.0.0.1:0"\norigins = ["https://a"]',
            "listeners.1.origins",
            "ws://",
        ),
        (
            '[[listeners]]\naddress = "ws://127.0.0.1:0"\norigins = ["a.example"]',
            "listeners.1.origins.0",
            "https://HOST",
        ),
        (
            '[[listeners]]\naddress = "ws://127.0.0.1:0"\norigins = ["https://a/"]',
            "listeners.1.origins.0",
            "https://HOST",
        ),
        ("[limits]\nmax_connections = true", "limits.max_connections", "integer"),
        ('[limits]\nmax_connections = "10"', "limits.max_connections", "integer"),
        ("[limits]\nmax_connections = 0", "limits.max_connections", "greater"),
        ('[auth]\nanonymous = "no"', "auth.anonymous", "boolean"),
        ('[auth]\nbans = ["client:*"]', "auth.bans.0", "pattern"),
        (
            '[auth]\nbans = [\n  "client:a",\n  "host:10.0.0.1/8",\n]',
            "auth.bans.1",
            "10.0.0.0/8",
        ),
        ('[[segments]]\nfilter = "a/#/b"', "segments.0.filter", "'a/#'"),
        ('[[segments]]\nfilter = "$share/g/a"', "segments.0.filter", "'a'"),
        (
            '[[segments]]\nfilter = "a/#"\n[[segments]]\nfilter = "a/b"',
            "segments.1.filter",
            "first",
        ),
        (
            '[[rules]]\nfilter = "$share/g/a"\nfunction = "builtins:str"',
            "rules.0.filter",
            "'a'",
        ),
        (
            '[[bridges]]\naddress = "a:1"\ncertificate = "c"\n[[bridges.topics]]\nfilter = "a"',
            "bridges.0.certificate",
            "tls://",
        ),
        (
            '[[bridges]]\naddress = "a:1"\n' + '[[bridges.topics]]\nfilter = "a"\n' * 2,
            "bridges.0.topics.1.filter",
            "there twice",
        ),
        (
            '[[bridges]]\naddress = "a:1"\n[[bridges.topics]]\nfilter = "a"\nprefix = "p/+/"',
            "bridges.0.topics.0.prefix",
            "wildcards",
        ),
        ('[[bridges]]\naddress = "a:1"\ntopics = []', "bridges.0.topics", "at least 1"),
        ("[limits]\nmax_retaind = 5", "limits.max_retaind", "max_retained"),
        ('[[rules]]\nfrom = "a"', "rules.0", "a function, or a destination"),
        ('[[rules]]\nto = { log = "l" }', "rules.0", "needs one topic filter"),
        ('[[rules]]\nfrom = "a/#/b"\nto = { log = "l" }', "rules.0.from", "filter"),
        ('[[rules]]\nfrom = "a"\nto = { log = "l", key = "k" }', "rules.0.to", "store"),
        ('[[rules]]\nfrom = "a"\nto = { log = "l", topic = "t" }', "rules.0.to", "one of"),
        ('[[rules]]\nfrom = "a"\nto = { topic = "t/#" }', "rules.0.to", "wildcards"),
        (
            '[[rules]]\nfrom = "a"\nto = { queue = "q", attempts = 0 }',
            "rules.0.to.attempts",
            "1",
        ),
        (
            '[[rules]]\nfrom = "a"\nwhere = { n = { "~" = 1 } }\nto = { topic = "t" }',
            "rules.0",
            "'~' is not a comparison",
        ),
        ('[[rules]]\nfrom = "a"\ntopic = "t"\nto = { log = "l" }', "rules.0", "topic"),
        ('[[door]]\nactor = "w"', "door.0", "acknowledge"),
        (
            '[[door]]\nacknowledge = "handled"\ndirection = "in"',
            "door.0",
            "actor or of a queue",
        ),
        (
            '[[listeners]]\naddress = "tls://127.0.0.1:0"\ncertificate = "c"\n'
            'certificate_user = "subject"',
            "listeners.1.certificate_user",
            "client_certificates",
        ),
        (
            f'[[listeners]]\naddress = "unix:a"\n[[listeners.users]]\nname = "ann"\n'
            f'password = "{HASH}"\n[[listeners.acl]]\nuser = "anm"\nallow = ["#"]',
            "listeners.1.acl.0.user",
            "'ann'",
        ),
        (
            '[[listeners]]\naddress = "tls://127.0.0.1:0"\ncertificate = "c"\nauthority = "a"\n'
            'client_certificates = true\ntenants = true\nmount_point = "m/"',
            "listeners.1.mount_point",
            "tenants",
        ),
        (
            '[[listeners]]\naddress = "unix:a"\nmount_point = "m/#"',
            "listeners.1.mount_point",
            "w",
        ),
        ("[limits]\nmaximum_qos = 3", "limits.maximum_qos", "2"),
        ("[limits]\nretain_available = 1", "limits.retain_available", "bool"),
        (
            "[limits]\nallow_zero_length_clientid = 0",
            "limits.allow_zero_length_clientid",
            "bool",
        ),
        ("[limits]\nallow_mqtt_3_1 = 1", "limits.allow_mqtt_3_1", "bool"),
        ("[limits]\nmax_queued_messages = -1", "limits.max_queued_messages", "0"),
        ("[limits]\nmax_queued_size = -1", "limits.max_queued_size", "0"),
    ],
)
def test_ambiguous_settings_are_refused_with_their_line(tmp_path, text, key, advice):
    (line,) = lines_of(tmp_path, LISTENER + text)

    assert line.startswith((f"{key} = ", f"{key}: "))
    assert advice in line
    number = int(line.rpartition("(line ")[2].rstrip(")"))
    name = key.rpartition(".")[2]
    found = (LISTENER + text).split("\n")[number - 1]
    assert name in found or name.isdecimal()


def test_the_line_is_that_of_the_text_in_a_list(tmp_path):
    text = LISTENER + (
        '# a comment\n[[acl]]\nuser = "ann"\nallow = ["a"]\n\n[[acl]]  # another\nuser = "bob"\n'  # noqa: E501
        "allow = [\n    \"read b\", # one\n    'raed c',\n]\n"
    )

    (line,) = lines_of(tmp_path, text)

    assert line.startswith("acl.1.allow.1 = 'raed c'")
    assert "write 'read c'" in line
    assert line.endswith("(line 12)")


def test_the_example_of_the_docs_is_understood(tmp_path):
    text = WHOLE.replace('"down/secret"', '"write down/#", "topic read secret/#", "deny x/%u"')
    security = make_security(read_config_file(write(tmp_path, text)))
    access = Ruled(Client("c", None, ""), security.acl, "ann")

    assert access.may_receive("down/1")
    assert not access.may_publish("down/1")


def test_mistakes_of_form_do_not_hide_mistakes_of_meaning(tmp_path):
    text = """
    [[listeners]]
    address = "127.0.0.1:0"
    backlogg = 1
    [[listeners]]
    address = "somewhere"
    [[listeners]]
    address = "127.0.0.1:0"
    authority = "ca.pem"
    [[users]]
    name = "a"
    password = "no hash"
    [[acl]]
    user = "a"
    allow = ["write #"]
    [[acl]]
    user = "b"
    allow = ["write #"]
    """
    with pytest.raises(MqttConfigError) as caught:
        read_config_file(write(tmp_path, text))
    told = "\n".join(caught.value.lines)
    for part in (
        "listeners.0.backlogg",
        "listeners.1.address",
        "listeners.2.authority",
        "users.0",
    ):
        assert part in told
    assert "acl.1.user = 'b': unknown user; write '*' (line 17)" in told
    assert "acl.0.user" not in told


def test_rules_with_destinations_and_a_map_to_an_actor_are_read(tmp_path) -> None:
    text = f"""
    {LISTENER}
    [[rules]]
    from = "sensors/+/celsius"
    where = {{ celsius = {{ ">" = 30 }} }}
    select = ["celsius", "room"]
    qos = 2
    to = {{ log = "alarms" }}
    [[rules]]
    from = "a"
    select = "n"
    to = {{ store = "things", key = "{{1}}", file = "things.db" }}
    [[door]]
    mqtt = "jobs/"
    direction = "in"
    acknowledge = "handled"
    actor = "billing"
    attempts = 3
    """
    path = tmp_path / "mqtt.toml"
    path.write_text(text)
    table = read_config_file(path)

    first, second = make_config(table, tmp_path).rules
    (mapping,) = make_maps(table)

    assert (first.topic_filter, first.qos, first.conditions) == (
        "sensors/+/celsius",
        2,
        {"celsius": {">": 30}},
    )
    assert (first.select, first.to) == (
        ("celsius", "room"),
        Destination(log=str(tmp_path / "alarms")),
    )
    assert second.to == Destination(store="things", key="{1}", file=str(tmp_path / "things.db"))
    assert mapping.destination() == Destination(actor="billing", attempts=3)


def test_users_rules_and_mount_points_of_single_listeners_are_read(tmp_path) -> None:
    text = f"""
    [[users]]
    name = "everywhere"
    password = "{HASH}"
    [[listeners]]
    address = "127.0.0.1:1883"
    mount_point = "site/"
    anonymous = true
    users = []
    [[listeners]]
    address = "127.0.0.1:1884"
    [[listeners.acl]]
    user = "everywhere"
    allow = ["a/#"]
    [[listeners]]
    address = "127.0.0.1:1885"
    [limits]
    maximum_qos = 1
    retain_available = false
    allow_zero_length_clientid = false
    allow_mqtt_3_1 = true
    max_queued_messages = 100
    max_queued_size = 100000
    max_client_id_length = 65535
    """
    path = tmp_path / "mqtt.toml"
    path.write_text(text)
    config = make_config(read_config_file(path), tmp_path)

    first, second, third = (config.security.of_listener(f"127.0.0.1:188{n}") for n in (3, 4, 5))

    assert (first.anonymous, dict(first.users)) == (True, {})
    assert (second.anonymous, list(second.users)) == (False, ["everywhere"])
    assert second.acl[0].allow == ("a/#",)
    assert third is config.security
    assert config.listeners[0].mount_point == "site/"
    limits = config.limits
    assert (limits.maximum_qos, limits.retain_available) == (1, False)
    assert (limits.zero_length_client_ids, config.network.mqtt_3_1) == (False, True)
    assert (limits.queued_messages, limits.queued_bytes) == (100, 100_000)
    assert limits.client_id_length == 65_535
