"""Mosquitto's files become a configuration that is valid, and nothing is lost silently."""

import tomllib
from pathlib import Path

import pytest

from callboard.mqtt.service.config_file import make_config, read_config_file
from callboard.mqtt.service.mosquitto_import import Imported, MosquittoError, import_files

HASH = (
    "$7$101$3mWx7hULhY1KOsDf$qXaxUEE9gMkdqu+wGVDqtHZKDLqraIhu1oHz"
    "/hCPt4+LanwXaDxr27iSMMpg1uXLWK0dFXNpM/NpcQyzHtp3Kw=="
)


def imported(folder: Path, conf: str, **files: str) -> Imported:
    """Import a configuration whose other files are in the same folder."""
    for name, text in files.items():
        (folder / name).write_text(text)
    path = folder / "mosquitto.conf"
    path.write_text(conf)
    return import_files(path)


def table_of(folder: Path, conf: str, **files: str) -> dict:
    """Return the converted tables; the configuration must be valid, and complete."""
    result = imported(folder, conf, **files)
    assert result.unconverted == []
    return checked(folder, result)


def checked(folder: Path, result: Imported) -> dict:
    path = folder / "mqtt.toml"
    path.write_text(result.text)
    make_config(read_config_file(path), folder)
    return tomllib.loads(result.text)


def test_an_empty_file_admits_clients_of_this_machine(tmp_path) -> None:
    table = table_of(tmp_path, "# nothing\n")

    assert table == {
        "listeners": [{"address": "127.0.0.1:1883"}],
        "auth": {"anonymous": True},
    }


def test_listeners_of_all_kinds(tmp_path) -> None:
    conf = """
    listener 1883
    listener 1884 ::1
    listener 0 /run/mosquitto.sock
    listener 8883 127.0.0.1
    cafile ca.crt
    certfile /etc/server.crt
    keyfile /etc/server.key
    crlfile /etc/revoked.pem
    require_certificate true
    use_subject_as_username true
    listener 9001 127.0.0.1
    protocol websockets
    mount_point web/
    listener 9002 127.0.0.1
    protocol websockets
    certfile /etc/server.crt
    keyfile /etc/server.key
    allow_anonymous true
    """
    assert table_of(tmp_path, conf)["listeners"] == [
        {"address": "0.0.0.0:1883"},
        {"address": "[::1]:1884"},
        {"address": "unix:/run/mosquitto.sock"},
        {
            "address": "tls://127.0.0.1:8883",
            "authority": str(tmp_path / "ca.crt"),
            "certificate": "/etc/server.crt",
            "key": "/etc/server.key",
            "revoked": "/etc/revoked.pem",
            "client_certificates": True,
            "certificate_user": "subject",
        },
        {"address": "ws://127.0.0.1:9001", "mount_point": "web/"},
        {
            "address": "wss://127.0.0.1:9002",
            "certificate": "/etc/server.crt",
            "key": "/etc/server.key",
        },
    ]


def test_limits_have_our_names_and_meanings(tmp_path) -> None:
    conf = """
    max_inflight_messages 0
    max_queued_messages 500
    max_queued_bytes 100000
    max_packet_size 0
    max_keepalive 600
    memory_limit 1000000
    persistent_client_expiration 2w
    retain_available false
    allow_zero_length_clientid false
    sys_interval 5
    log_type error
    log_type notice
    listener 1883 127.0.0.1
    max_qos 1
    max_connections -1
    max_topic_alias 0
    allow_anonymous true
    """
    table = table_of(tmp_path, conf)

    assert table["limits"] == {
        "max_inflight": 65_535,
        "max_queued_messages": 500,
        "max_queued_size": 100_000,
        "max_packet_size": 268_435_460,
        "max_keepalive": 600,
        "max_messages_size": 1_000_000,
        "max_session_expiry": 14 * 86_400,
        "retain_available": False,
        "allow_zero_length_clientid": False,
        "max_connections": 10_010,
        "topic_alias_maximum": 0,
    }
    assert (table["sys_interval"], table["log_level"]) == (5, "info")
    assert table["listeners"][0]["maximum_qos"] == 1


def test_users_and_rules_keep_their_hashes_and_meaning(tmp_path) -> None:
    conf = "listener 1883 127.0.0.1\npassword_file passwd\nacl_file acl\n"
    acl = """
    topic read public/#
    user ann
    topic house/#
    topic write garden
    topic deny house/safe
    pattern read clients/%c/#
    """
    table = table_of(tmp_path, conf, passwd=f"# users\nann:{HASH}\n", acl=acl)

    assert table["users"] == [{"name": "ann", "password": HASH}]
    assert table["acl"] == [
        {"user": "", "allow": ["read public/#"]},
        {"user": "ann", "allow": ["readwrite house/#", "write garden"], "deny": ["house/safe"]},
        {"user": "*", "allow": ["read clients/%c/#"]},
    ]
    assert table["auth"] == {"check_filters": False}


def test_listeners_have_their_own_users_with_per_listener_settings(tmp_path) -> None:
    conf = """
    per_listener_settings true
    listener 1883 127.0.0.1
    allow_anonymous true
    listener 1884 127.0.0.1
    password_file passwd
    """
    open_one, closed_one = table_of(tmp_path, conf, passwd=f"ann:{HASH}\n")["listeners"]

    assert open_one == {
        "address": "127.0.0.1:1883",
        "anonymous": True,
        "users": [],
        "acl": [],
    }
    assert closed_one["anonymous"] is False
    assert closed_one["users"] == [{"name": "ann", "password": HASH}]


def test_bridges_with_prefixes_and_single_topics(tmp_path) -> None:
    conf = """
    listener 1883 127.0.0.1
    allow_anonymous true
    connection up
    address one.example two.example:1884
    topic alarms/# out 2 local/ remote/
    topic commands/# in
    topic "" in 0 here there
    remote_clientid plant
    remote_username joe
    remote_password pw
    keepalive_interval 30
    restart_timeout 5 60
    bridge_max_packet_size 1000
    bridge_outgoing_retain false
    notifications false
    bridge_cafile /etc/ca.pem
    """
    (bridge,) = table_of(tmp_path, conf)["bridges"]

    topics = bridge.pop("topics")
    assert bridge == {
        "address": "tls://one.example:8883",
        "fallbacks": ["tls://two.example:1884"],
        "client_id": "plant",
        "version": "3.1.1",
        "username": "joe",
        "password": "pw",
        "keep_alive": 30,
        "reconnect_delay": 5.0,
        "packet_size": 1000,
        "retain": False,
        "notifications": False,
        "authority": "/etc/ca.pem",
    }
    first = {"filter": "alarms/#", "direction": "out", "qos": 2}
    assert topics == [
        first | {"local_prefix": "local/", "remote_prefix": "remote/"},
        {"filter": "commands/#", "direction": "in", "qos": 0},
        {"filter": "", "direction": "in", "qos": 0, "local_prefix": "here"}
        | {"remote_prefix": "there"},
    ]


def test_topics_in_both_directions_need_mqtt_5(tmp_path) -> None:
    conf = "connection up\naddress a\ntopic # both 1\n"

    result = imported(tmp_path, conf)

    (bridge,) = checked(tmp_path, result)["bridges"]
    assert bridge["version"] == "5"
    assert "needs MQTT 5" in result.unconverted[0].reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("tls_version tlsv1.2", "no equivalent"),
        ("plugin /usr/lib/auth.so", "[hooks] connect"),
        ("persistence true", 'directory = "journal"'),
        ("log_dest syslog", "stderr"),
        ("unheard_of 5", "no equivalent"),
        ("max_keepalive soon", "not a number"),
        ("persistent_client_expiration never", "unit"),
        ("message_size_limit 1000", "counts topic"),
        ("auto_id_prefix x", "'auto-'"),
    ],
)
def test_settings_without_an_equivalent_are_listed(tmp_path, line, reason) -> None:
    result = imported(tmp_path, f"{line}\nlistener 1883 127.0.0.1\nallow_anonymous true\n")

    (missing,) = result.unconverted
    assert (missing.place, missing.text) == ("mosquitto.conf:1", line)
    assert reason in missing.reason
    checked(tmp_path, result)


def test_settings_that_need_no_equivalent_are_named_apart(tmp_path) -> None:
    result = imported(tmp_path, "autosave_interval 5\npid_file /run/m.pid\n")

    assert result.unconverted == []
    assert [item.text for item in result.needless] == [
        "autosave_interval 5",
        "pid_file /run/m.pid",
    ]


def test_lines_of_other_files_that_cannot_be_converted_are_listed(tmp_path) -> None:
    conf = "listener 1883 127.0.0.1\npassword_file passwd\nacl_file acl\n"
    acl = "user ann\ntopic read a/%c\ntopic read a/#/b\nnonsense\n"

    result = imported(tmp_path, conf, passwd=f"ann:{HASH}\nbob:plain\n", acl=acl)

    assert [item.place for item in result.unconverted] == [
        "passwd:2",
        "acl:2",
        "acl:3",
        "acl:4",
    ]
    assert "plain" not in str(result.unconverted[0])
    checked(tmp_path, result)


def test_included_folders_are_read(tmp_path) -> None:
    more = tmp_path / "conf.d"
    more.mkdir()
    (more / "b.conf").write_text("allow_anonymous true\n")
    (more / "a.conf").write_text("listener 1885 127.0.0.1\n")

    table = table_of(tmp_path, f"include_dir {more}\n")

    assert table["listeners"] == [{"address": "127.0.0.1:1885"}]


def test_other_files_can_be_given(tmp_path) -> None:
    conf, acl, passwords = (tmp_path / name for name in ("conf", "acl", "passwords"))
    conf.write_text("listener 1883 127.0.0.1\n")
    acl.write_text("user ann\ntopic a\n")
    passwords.write_text(f"ann:{HASH}\n")

    table = checked(tmp_path, import_files(conf, acl, passwords))

    assert table["users"][0]["name"] == "ann"
    assert table["acl"] == [{"user": "ann", "allow": ["readwrite a"]}]
    with pytest.raises(MosquittoError, match="cannot be read"):
        import_files(tmp_path / "nothing")
