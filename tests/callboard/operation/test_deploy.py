"""The files of `deploy/` fit to the program: series, ports, probes, deadlines, locks."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml

from callboard import Actor, Node, handler
from callboard.kernel.shutdown import DRAIN_TIMEOUT
from callboard.operation.configuration import VARIABLES, load_configuration
from callboard.operation.health import HealthServer
from tests.callboard.entity.journal.carts import Cart
from tests.polling import eventually

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "callboard.rules.yaml"
BOARD = DEPLOY / "grafana" / "callboard.json"


class Echo(Actor):
    @handler
    def text(self, message: str) -> str:
        sum(range(500_000))  # so that samples of its time are taken
        return message


@pytest.fixture(scope="module")
def series():
    """The names of the series that two linked nodes have, each with its labels."""
    with Node("a") as node, Node("b") as other, HealthServer(node) as health:
        node.listen("127.0.0.1", 0)
        other.connect(node.address)
        eventually(node.nodes)
        echo = other.spawn(Echo)
        local = node.spawn(Echo)
        node.host(Cart)

        def read():
            node.ref(str(echo)).ask("x").result(10)
            local.ask("x").result(10)
            with urllib.request.urlopen(f"{health.url}/metrics") as answer:
                text = answer.read().decode()
            found = {}
            for name, labels in re.findall(r"^(\w+)(?:\{([^}]*)\})? ", text, re.MULTILINE):
                found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
            return found if "callboard_handler_seconds_total" in found else None

        yield eventually(read)


def expressions():
    rules = re.findall(r"^ +expr: (.+)$", RULES.read_text(), re.MULTILINE)
    board = json.loads(BOARD.read_text())
    panels = [target["expr"] for each in board["panels"] for target in each["targets"]]
    return [*rules, *panels, *(each["query"] for each in board["templating"]["list"])]


def test_each_expression_names_series_that_a_node_has(series):
    for expression in expressions():
        for name in re.findall(r"callboard_\w+", expression):
            assert name in series, expression
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            known = {"instance"}.union(
                *(series[n] for n in re.findall(r"callboard_\w+", expression))
            )
            assert {each.strip() for each in labels.split(",")} <= known, expression


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs Debian's prometheus")
def test_promtool_takes_the_rules():
    done = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs Debian's prometheus")
def test_the_rules_fire_when_they_should_and_no_sooner():
    tests = RULES.with_name("callboard.rules.test.yaml")
    done = subprocess.run(
        ["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


#: Seconds after a drain in which a node closes, at most: half a second, and five to write.
CLOSING = 6.0

CLUSTER = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def of_kind(kind):
    (found,) = [each for each in CLUSTER if each["kind"] == kind]
    return found


def pod():
    return of_kind("StatefulSet")["spec"]["template"]["spec"]


def container():
    return pod()["containers"][0]


def environments():
    kubernetes = {each["name"]: each.get("value", "shop-0") for each in container()["env"]}
    return [kubernetes, dict(COMPOSE["services"]["shop"]["environment"])]


@pytest.mark.parametrize("environment", environments(), ids=["kubernetes", "compose"])
def test_the_variables_of_containers_configure_a_node(environment, tmp_path):
    assert environment.keys() <= VARIABLES.keys()

    secret = tmp_path / "secret"
    secret.write_text("x" * 32)
    config = load_configuration(
        environment=environment | {"CALLBOARD_SECRET_FILE": str(secret)}
    )

    assert config.listen == "0.0.0.0:4222"
    assert config.join[0].startswith("dns://")
    assert config.join[0].endswith(":4222")
    assert config.health == "0.0.0.0:9464"
    assert config.drain_timeout == DRAIN_TIMEOUT
    assert environment["CALLBOARD_SECRET_FILE"].startswith(("/etc/", "/run/secrets/"))


def test_a_stop_is_longer_than_a_drain():
    (_, compose), drain = environments(), DRAIN_TIMEOUT + CLOSING
    grace = COMPOSE["services"]["shop"]["stop_grace_period"]
    unit = (DEPLOY / "callboard@.service").read_text()
    image = (DEPLOY / "Containerfile").read_text()

    assert pod()["terminationGracePeriodSeconds"] >= drain
    assert int(grace.removesuffix("s")) >= float(compose["CALLBOARD_DRAIN_TIMEOUT"]) + CLOSING
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) >= drain
    assert int(re.search(r"--stop-timeout (\d+)", image)[1]) >= drain


def test_probes_ask_pages_that_a_node_has():
    with Node("a") as node, HealthServer(node) as health:
        health.set_ready()
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = container()[name]["httpGet"]
            assert get["port"] == 9464
            with urllib.request.urlopen(health.url + get["path"]) as answer:
                assert answer.status == 200
        (test,) = [
            part
            for part in COMPOSE["services"]["shop"]["healthcheck"]["test"]
            if "http" in part
        ]
        path = re.search(r"http://127\.0\.0\.1:9464(/\w+)", test)[1]
        with urllib.request.urlopen(health.url + path) as answer:
            assert answer.status == 200


def test_a_draining_node_is_soon_unready_and_still_alive():
    probes = {name: container()[f"{name}Probe"] for name in ("liveness", "readiness")}
    seconds = {
        name: probe["periodSeconds"] * probe["failureThreshold"]
        for name, probe in probes.items()
    }

    assert seconds["readiness"] <= 5
    assert seconds["liveness"] >= 30
    assert all(probe["timeoutSeconds"] > 2 for probe in probes.values())  # LIVE_LIMIT


def test_ports_of_all_files_agree():
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    image = (DEPLOY / "Containerfile").read_text()

    assert ports == {"callboard": 4222, "health": 9464}
    assert re.search(r"^EXPOSE (.+)$", image, re.MULTILINE)[1] == "4222 9464"
    assert of_kind("Service")["spec"]["ports"] == [{"name": "callboard", "port": 4222}]


def test_service_budget_and_set_select_the_same_pods():
    labels = of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"]

    assert of_kind("Service")["spec"]["selector"] == labels
    assert (
        of_kind("Service")["metadata"]["name"] == of_kind("StatefulSet")["spec"]["serviceName"]
    )
    for kind in ("StatefulSet", "PodDisruptionBudget"):
        assert of_kind(kind)["spec"]["selector"]["matchLabels"] == labels
    replicas = of_kind("StatefulSet")["spec"]["replicas"]
    assert replicas - of_kind("PodDisruptionBudget")["spec"]["maxUnavailable"] >= 2
    mounts = {each["name"] for each in container()["volumeMounts"]}
    claims = {
        each["metadata"]["name"]
        for each in of_kind("StatefulSet")["spec"]["volumeClaimTemplates"]
    }
    assert mounts == claims | {each["name"] for each in pod()["volumes"]}


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.spark"])
def test_images_fetch_packages_from_locks_with_hashes_only(name):
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    commands = re.findall(r"pip install ([^&\n]*)", text)

    assert len(commands) == 3
    for command in commands:
        if "--no-index" in command:
            assert "--no-deps" in command
            continue
        lock = re.search(r"--require-hashes -r (requirements/\w+\.txt)", command)[1]
        assert "--hash=sha256:" in (DEPLOY.parent / lock).read_text()
