"""Secrets and certificates of commands: from files and variables, never from arguments."""

import json
from pathlib import Path

import pytest
import trustme

from callboard import Actor, Node, Tls, handler
from callboard.cli import main
from callboard.cli.cli_error import CliError
from callboard.cli.options import AccessOptions, Proof
from tests.callboard.cli.process import start_command


class Echo(Actor):
    @handler
    def text(self, msg: str) -> str:
        return msg.upper()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("CALLBOARD_SECRET", "CALLBOARD_SECRET_FILE", "CALLBOARD_TLS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def secret_file(tmp_path) -> Path:
    path = tmp_path / "cluster.secret"
    path.write_text("s3cret-of-the-cluster\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(made / "authority.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(made / "certificate.pem")
    issued.private_key_pem.write_to_path(made / "key.pem")
    return made


def serve(**options) -> Node:
    node = Node("shop", **options)
    node.listen()
    node.register("echo", node.spawn(Echo))
    return node


def ask(capsys, node, *options):
    code = main(["actor", "ask", f"{node.address}/echo", "hello", *map(str, options)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_secret_is_read_from_a_file(capsys, secret_file):
    with serve(secret="s3cret-of-the-cluster") as node:
        assert ask(capsys, node, "--secret-file", secret_file) == (0, "HELLO\n", "")


@pytest.mark.parametrize("variable", ["CALLBOARD_SECRET", "CALLBOARD_SECRET_FILE"])
def test_a_secret_is_read_from_the_environment(capsys, secret_file, monkeypatch, variable):
    value = secret_file if variable.endswith("FILE") else "s3cret-of-the-cluster"
    monkeypatch.setenv(variable, str(value))

    with serve(secret="s3cret-of-the-cluster") as node:
        assert ask(capsys, node) == (0, "HELLO\n", "")


def test_a_wrong_secret_is_reported_in_one_line_with_the_next_step(capsys, secret_file):
    with serve(secret="another") as node:
        code, out, err = ask(capsys, node, "--secret-file", secret_file)

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "the shared secrets differ; start both nodes with the same --secret-file" in err
    assert "s3cret" not in err
    assert "another" not in err


@pytest.mark.slow
def test_tls_files_are_read_from_a_folder(capsys, folder):
    tls = Tls(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")
    with serve(tls=tls) as node:
        assert ask(capsys, node, "--tls", folder) == (0, "HELLO\n", "")
        assert ask(capsys, node)[0] == 1


def test_a_node_without_a_certificate_of_its_own_can_still_dial(capsys, folder, tmp_path):
    (tmp_path / "authority.pem").write_bytes((folder / "authority.pem").read_bytes())
    tls = Tls(
        folder / "certificate.pem", folder / "key.pem", folder / "authority.pem", mutual=False
    )
    with serve(tls=tls) as node:
        assert ask(capsys, node, "--tls", tmp_path) == (0, "HELLO\n", "")


@pytest.mark.slow
def test_node_run_guards_a_public_port(capsys, tmp_path, secret_file, folder):
    app = tmp_path / "credentials_app.py"
    app.write_text(
        "from callboard import Actor, handler\n"
        "class Echo(Actor):\n"
        "    @handler\n"
        "    def text(self, msg: str) -> str:\n"
        "        return msg.upper()\n"
        "def setup(node):\n"
        "    node.register('echo', node.spawn(Echo))\n"
    )
    options = ["--secret-file", str(secret_file), "--tls", str(folder)]
    with start_command(
        "node", "run", app, "--json", "--listen", "0.0.0.0:0", *options
    ) as process:
        port = json.loads(process.stdout.readline())["address"].rpartition(":")[2]
        address = f"basp://127.0.0.1:{port}/echo"

        assert main(["actor", "ask", address, "hello", *options]) == 0
        assert main(["actor", "ask", address, "hello", *options[:2]]) == 1

        process.terminate()
        assert process.wait(120) == 0
    assert capsys.readouterr().out == "HELLO\n"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_secret_is_wrong_use(tmp_path, content):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(CliError, match="secret") as caught:
        AccessOptions(secret_file=path).proof()
    assert caught.value.code == 2


def test_a_folder_without_an_authority_is_wrong_use(tmp_path):
    with pytest.raises(CliError, match=r"authority\.pem is missing") as caught:
        AccessOptions(tls=tmp_path).proof()
    assert caught.value.code == 2


def test_without_access_options_no_proof_is_required():
    assert AccessOptions().proof() == Proof(None, None)


def test_credentials_do_not_show_themselves():
    assert "s3cret" not in repr(Proof("s3cret"))
