"""The file of `--permissions`: what it says, and every mistake in it at once."""

import pytest

from callboard import Rights
from callboard.cli.app import main
from callboard.operation.configuration import InvalidConfiguration
from callboard.operation.permissions import load_permissions


def written(tmp_path, text):
    (tmp_path / "member.secret").write_text("s2\n")
    path = tmp_path / "peers.toml"
    path.write_text(text)
    return path


GOOD = """
[secrets]
sensor = "s1"
member = { file = "member.secret" }

[permissions.sensor]
names = ["till"]
publish = ["/sensors"]
stores = { prices = "read" }
inspect = true

[permissions."*"]
member = true
"""


def test_a_file_says_who_may_do_what_in_its_order(tmp_path):
    found = load_permissions(written(tmp_path, GOOD))

    assert found.secrets == {"sensor": "s1", "member": "s2"}
    assert list(found.permissions) == ["sensor", "*"]
    assert found.permissions["sensor"] == Rights(
        names=["till"], publish=["/sensors"], stores={"prices": "read"}, inspect=True
    )
    assert found.permissions["*"].is_member


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "permissions: this key is required"),
        (
            "[permissions.a]\nnmaes = []",
            "a.nmaes: there is no such key here; known keys are",
        ),
        ("[permissions.a]\nnames = 'till'", "permissions.a.names = 'till'"),
        ("[permissions.a]\nstores = { p = 'raed' }", "permissions.a.stores.p = 'raed'"),
        ("[permissions.a]\nmember = true\nnames = ['x']", "remove names"),
        ("[secrets]\na = 5\n[permissions.a]", "secrets.a = 5: write a text"),
        ("[secrets]\na = ''\n[permissions.a]", "secrets.a = ''"),
        ("[secrets]\na = { file = 'none' }\n[permissions.a]", "secrets.a = {'file': 'none'}"),
        ("[secrets]\nsensor = 's'\n[permissions.sensors]", "did you mean 'sensors'?"),
        ("[secrets]\na = 's'\nb = 's'\n[permissions.'*']", "are the same"),
        ("secrets = [", "it is not TOML"),
    ],
)
def test_mistakes_are_told_with_their_keys(tmp_path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(InvalidConfiguration) as caught:
        load_permissions(path)
    assert any(said in line and line.startswith(str(path)) for line in caught.value.lines)
    assert "'s'" not in str(caught.value)  # a secret is not quoted


def test_all_mistakes_are_told_at_once_by_check(tmp_path, capsys):
    written(tmp_path, "[secrets]\na = 5\n[permissions.a]\nnmaes = []\ndrain = 3\n")
    node = tmp_path / "node.toml"
    node.write_text('permissions = "peers.toml"\n')

    assert main(["node", "check", str(node)]) != 0
    err = capsys.readouterr().err
    assert all(
        key in err for key in ("secrets.a", "permissions.a.nmaes", "permissions.a.drain")
    )
    written(tmp_path, GOOD)
    assert main(["node", "check", str(node)]) == 0
