"""The codec beside npm's mqtt-packet, for every packet of 3.1.1 and 5 and in both directions.

It reads what we write, and we read what it writes of that: the same packet comes back.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from callboard.mqtt.wire import packet as kinds
from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.framing import body_start, packet_end
from callboard.mqtt.wire.packet import V4, V5, Connect, Disconnect, Packet, PingReq, PingResp
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.packets import packets, versioned
from tests.interop.npm_modules import node

PROGRAM = """
const {parser, generate} = require(require.resolve('mqtt-packet', {paths: [process.argv[1]]}));
const lines = require('readline').createInterface({input: process.stdin});
lines.on('line', (line) => {
  const [bytes, version] = JSON.parse(line);
  const found = [];
  const reader = parser({protocolVersion: version});
  reader.on('packet', (packet) => found.push(packet));
  reader.on('error', (error) => found.push(error));
  reader.parse(Buffer.from(bytes, 'hex'));
  let answer = {count: found.length, kind: found[0].cmd};
  try {
    answer.bytes = generate(found[0], {protocolVersion: version}).toString('hex');
  } catch (error) { answer.error = String(error); }
  console.log(JSON.stringify(answer));
});
"""

REFUSED = ("Username is required to use password", "clientId must be given")
"""What it does not write although MQTT 5, or both versions, allow it."""


class Foreign:
    """The other codec, in a process."""

    def __init__(self) -> None:
        program, modules = node()
        self._process = subprocess.Popen(
            [program, "-e", PROGRAM, str(modules / "mqtt")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read_and_write(self, data: bytes, version: int) -> dict[str, Any]:
        """Return the kind of the packet that it reads, and the bytes that it makes of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([data.hex(), version]) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def foreign() -> Iterator[Foreign]:
    codec = Foreign()
    yield codec
    codec.close()


def there_and_back(foreign: Foreign, packet: Packet, version: int) -> Packet | None:
    """Return what comes back; None where the other codec writes no such packet."""
    answer = foreign.read_and_write(encode(packet, version), version)
    assert (answer["count"], answer["kind"]) == (1, type(packet).__name__.lower())
    if "error" in answer:
        assert isinstance(packet, Connect)
        assert any(text in answer["error"] for text in REFUSED)
        return None
    data = bytes.fromhex(answer["bytes"])
    assert packet_end(data) == len(data)
    return decode(data[0], data[body_start(data) :], version)


def fits_a_table(packet: Any) -> bool:
    """Whether the other codec keeps all user properties: of one name it loses empty values."""
    properties = getattr(packet, "properties", None)
    pairs = () if properties is None else properties.user_properties
    names = Counter(name for name, _ in pairs)
    return all(value or names[name] == 1 for name, value in pairs)


def by_name(packet: Any) -> Any:
    """Return a packet with its user properties by name: the other codec has a table of them."""
    if isinstance(packet, Connect) and packet.will is not None:
        packet = replace(packet, will=by_name(packet.will))
    properties = getattr(packet, "properties", None)
    if properties is None:
        return packet
    pairs = sorted(properties.user_properties, key=lambda pair: pair[0])
    return replace(packet, properties=replace(properties, user_properties=tuple(pairs)))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(versioned)
def test_any_packet_comes_back_from_the_other_codec(foreign: Foreign, pair: Any) -> None:
    version, packet = pair
    assume(fits_a_table(packet) and fits_a_table(getattr(packet, "will", None)))

    back = there_and_back(foreign, packet, version)

    assert back is None or by_name(back) == by_name(packet)


@pytest.mark.slow
@pytest.mark.parametrize("version", [V4, V5])
def test_every_kind_of_packet_is_compared(foreign: Foreign, version: int) -> None:
    seen: Counter[type] = Counter()
    empty = Properties() if version == V5 else None

    @settings(max_examples=300, derandomize=True, database=None)
    @given(packets(version))
    def compare(packet: Packet) -> None:
        if there_and_back(foreign, packet, version) is not None:
            seen[type(packet)] += 1

    compare()
    for packet in (PingReq(), PingResp(), Disconnect(properties=empty)):
        assert there_and_back(foreign, packet, version) == packet
        seen[type(packet)] += 1
    names = {kind.name.replace("_", "").lower() for kind in kinds.PacketType}
    wanted = names if version == V5 else names - {"auth"}
    assert {kind.__name__.lower() for kind in seen} == wanted
