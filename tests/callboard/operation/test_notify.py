import os
import socket

import pytest

from callboard import Node
from callboard.operation import ServiceManager


@pytest.fixture
def manager_socket(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(10)
        yield path, lambda: sock.recv(4096).decode().splitlines()


@pytest.fixture
def node():
    with Node("shop") as node:
        node.listen()
        yield node


def test_ready_and_stopping_are_told(node, manager_socket):
    path, receive = manager_socket
    manager = ServiceManager.from_environment({"NOTIFY_SOCKET": path})

    manager.ready(node)
    manager.stopping(20)

    assert receive() == ["READY=1", f"STATUS=shop listens on {node.address}"]
    assert receive() == ["STOPPING=1", "STATUS=draining", "EXTEND_TIMEOUT_USEC=30000000"]


def test_the_watchdog_is_fed_while_the_runner_turns(node, manager_socket):
    path, receive = manager_socket
    environment = {
        "NOTIFY_SOCKET": path,
        "WATCHDOG_USEC": "20000",
        "WATCHDOG_PID": str(os.getpid()),
    }

    ServiceManager.from_environment(environment).ready(node)

    assert receive()[0] == "READY=1"
    assert [receive() for _ in range(3)] == [["WATCHDOG=1"]] * 3


def test_the_watchdog_of_another_process_is_left_alone(node, manager_socket):
    path, receive = manager_socket
    environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    manager = ServiceManager.from_environment(environment)

    manager.ready(node)
    manager.stopping(1)

    assert [receive()[0], receive()[0]] == ["READY=1", "STOPPING=1"]


def test_names_in_the_abstract_name_space_are_understood(node):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"callboard-test-{os.getpid()}"
        sock.bind(f"\0{name}")
        sock.settimeout(10)

        ServiceManager.from_environment({"NOTIFY_SOCKET": f"@{name}"}).stopping(1)

        assert sock.recv(100).startswith(b"STOPPING=1\n")


def test_without_a_service_manager_nothing_is_said(node, caplog):
    manager = ServiceManager.from_environment({})
    manager.ready(node)
    manager.stopping(1)

    assert caplog.records == []


def test_a_service_manager_that_is_gone_is_a_warning(node, tmp_path, caplog):
    ServiceManager(str(tmp_path / "nobody")).ready(node)

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "READY=1" in record.getMessage()
