"""All targets, by name, and how their findings are kept."""

import time
import traceback
from pathlib import Path
from typing import Final

from tests.fuzz.broker_1_4 import Broker14
from tests.fuzz.caf import Caf
from tests.fuzz.carriers import Carriers
from tests.fuzz.case import Case, Target, Violation, dump_case, load_case
from tests.fuzz.control import Control
from tests.fuzz.entity_wire import EntityWire
from tests.fuzz.files import Files
from tests.fuzz.flow import Flows
from tests.fuzz.gateway import Gateways
from tests.fuzz.handshake import Handshake
from tests.fuzz.log_write import LogWrites
from tests.fuzz.mqtt import Mqtt
from tests.fuzz.mqtt_router import MqttRouter
from tests.fuzz.node import WholeNode
from tests.fuzz.parts import Parts
from tests.fuzz.payload import Payload
from tests.fuzz.peering import Peering
from tests.fuzz.reader import Reader
from tests.fuzz.seal import Seal
from tests.fuzz.topic_core import TopicCore, TopicEndpoint
from tests.fuzz.topic_run import TopicFilters, TopicRun
from tests.fuzz.topic_value import TopicValue
from tests.fuzz.web_socket import WebSocket, WebSocketClient
from tests.fuzz.zeromq import ZeroMqMember

_ALL: Final[tuple[Target, ...]] = (
    Reader(),
    Handshake(),
    Payload(),
    Control(),
    Flows(),
    Gateways(),
    Mqtt(),
    MqttRouter(),
    WholeNode(),
    Carriers(),
    EntityWire(),
    Parts(),
    TopicValue(),
    TopicRun(),
    TopicFilters(),
    TopicCore(),
    TopicEndpoint(),
    Files(),
    WebSocket(),
    WebSocketClient(),
    LogWrites(),
    ZeroMqMember(),
    Peering(),
    Broker14(),
    Caf(),
    Seal(),
)
TARGETS: Final[dict[str, Target]] = {target.name: target for target in _ALL}
REGRESSIONS: Final = Path(__file__).parent / "regressions"
SLOWEST: Final = 5.0
"""Seconds of processor that one case may take: a small input that takes longer is an attack."""


def run_case(target: Target, case: Case) -> int:
    """Run one case; returns the frames that were read.

    Raises:
        Violation: it took too long; and whatever else the target raises.
    """
    started = time.process_time()  # a machine that stands still proves nothing
    frames = target.run(case)
    took = time.process_time() - started
    if took > SLOWEST:
        msg = f"one case took {took:.1f} s"
        raise Violation(msg)
    return frames


def keep(target: Target, seed: int, case: Case, error: BaseException) -> Path:
    """Write a case that failed to a file that a test replays for ever."""
    REGRESSIONS.mkdir(exist_ok=True)
    path = REGRESSIONS / f"{target.name}-{seed}.json"
    said = traceback.format_exception_only(error)[-1].strip()
    path.write_text(
        dump_case({"target": target.name, "seed": seed, "said": said[:300], "case": case})
        + "\n"
    )
    return path


def replay(path: Path) -> int:
    """Run a case that was kept."""
    kept = load_case(path.read_text())
    return run_case(TARGETS[kept["target"]], kept["case"])
