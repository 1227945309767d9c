"""Rules that hold for every command, present and future."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from callboard.cli import main
from callboard.cli.app import NOUNS, whole

ROOT = Path(__file__).parents[3]


def walk(command, path=()):
    """Yield the path of each command that does something."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield path
        return
    for name in subcommands:
        yield from walk(subcommands[name], (*path, name))


COMMANDS = sorted(walk(whole()))
#: The first command of each noun.
FIRST = {path[0]: path[1] for path in reversed(COMMANDS) if len(path) > 1}

#: Modules that the help of a command may load beside those of the command line itself; with a
#: node they would be more than four hundred.
MODULES_LIMIT = 185


def test_every_command_is_found():
    assert {("doctor",), ("new",), ("node", "ps"), ("actor", "stop")} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_a_purpose_examples_that_name_the_command_and_the_options(path, capsys):
    assert main([*path, "--help"]) == 0

    out = capsys.readouterr().out
    usage, purpose = out.strip().split("\n\n")[:2]
    assert " ".join(path) in usage
    assert purpose.strip().split("\n")[0]
    examples = out.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples
    assert all(re.match(r"\s+(.* \| )?callboard ", line) for line in examples)
    assert f"callboard {' '.join(path)}" in examples[0]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_usage_error_is_one_line_that_names_the_help_with_exit_code_2(path, capsys):
    assert main([*path, "--no-such-option"]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("callboard: ")
    assert line.endswith(f"{' '.join(path)} --help")


@pytest.mark.parametrize(
    "path", [path for path in COMMANDS if path[-1] not in ("replay", "broker")]
)
def test_every_command_prints_json(path, capsys):
    main([*path, "--help"])

    assert "--json" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"), [("callboard no", "node"), ("callboard node dr", "drain")]
)
def test_shells_complete_commands(typed, offered):
    program = "import sys; sys.argv[0] = 'callboard'; from callboard.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "_CALLBOARD_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(typed.count(" ")),
        },
    )

    assert (done.stdout.split(), done.stderr) == ([offered], "")


def test_modules_of_a_command_are_imported_by_that_command_only():
    code = (
        "import sys, callboard.cli; "
        "print(*sorted({'pydantic', 'rich.table', 'http.server', 'tomllib'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )

    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("noun", [*NOUNS])
def test_the_help_of_a_command_loads_no_node_and_few_modules(noun):
    """The cost of `callboard NOUN VERB --help` is its imports."""
    code = (
        f"import sys; from callboard.cli.app import main; before = len(sys.modules); "
        f"main([{noun!r}, {FIRST[noun]!r}, '--help']); "
        "heavy = {'asyncio', 'ssl', 'thespian', 'callboard.proxies.node'}; "
        "print(len(sys.modules) - before, *sorted(heavy & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )

    count, *heavy = done.stderr.split()
    assert (heavy, done.returncode) == ([], 0)
    assert int(count) < MODULES_LIMIT


def test_the_configuration_on_the_page_is_valid(tmp_path):
    from callboard.operation.configuration import load_configuration

    page = (ROOT / "docs" / "operations.md").read_text()
    text = re.search(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    for name in ("shop.py", "secret", "node.pem", "node.key", "cluster.pem"):
        (tmp_path / name).write_text("")
    (tmp_path / "node.toml").write_text(text)

    config = load_configuration(tmp_path / "node.toml", {}, {})

    assert set(tomllib.loads(text)) == set(type(config).model_fields)


def test_the_unit_and_the_container_run_existing_commands():
    unit = (ROOT / "deploy" / "callboard@.service").read_text()
    container = (ROOT / "deploy" / "Containerfile").read_text()

    commands = re.findall(r"-m callboard (\w+) (\w+)", unit)
    assert commands == [("node", "check"), ("node", "run")]
    assert set(commands) <= set(COMMANDS)
    assert "Type=notify\n" in unit
    assert '"callboard", "node", "run", "--config"' in container


def test_the_entry_point_of_the_spark_container_runs_java_with_the_variables_of_the_pod(
    tmp_path,
):
    (tmp_path / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "java").chmod(0o755)
    names = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP")
    told = {f"SPARK_{name}": name.lower() for name in names}
    told |= {"SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pod"}
    told |= {"SPARK_EXECUTOR_MEMORY": "1g", "SPARK_HOME": "/opt/spark"}
    told |= {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} x" for number in (10, 2)}
    command = [ROOT / "deploy" / "spark-entrypoint.sh", "executor"]
    path = f"{tmp_path}:/usr/bin:/bin"

    said = subprocess.run(command, env={"PATH": path, **told}, capture_output=True, text=True)

    words = said.stdout.splitlines()
    assert words[:4] == ["-Dn=2 x", "-Dn=10 x", "-Xms1g", "-Xmx1g"], said.stderr
    assert words[5:7] == ["/opt/spark/conf:/opt/spark/jars/*", BACKEND]
    assert dict(zip(words[7::2], words[8::2], strict=True)) == {
        "--driver-url": "driver_url",
        "--executor-id": "executor_id",
        "--cores": "executor_cores",
        "--app-id": "application_id",
        "--hostname": "executor_pod_ip",
        "--resourceProfileId": "0",
        "--podName": "pod",
    }


BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
