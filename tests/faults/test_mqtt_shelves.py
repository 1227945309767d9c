"""More than an MQTT router holds in memory waits for a client that is away, and is killed."""

from collections.abc import Callable
from pathlib import Path

from callboard.mqtt.wire.packet import V4, PubAck, Publish
from tests.callboard.mqtt.caller import Caller
from tests.faults.test_mqtt_kill import start

MESSAGES = 4_000
SIZE = 16_384
WINDOW = 100


def test_what_memory_does_not_hold_outlives_sigkill(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    process, port = start(tmp_path / "journal")
    try:
        with Caller(port, "away", V4, clean_start=False) as reader:
            reader.subscribe("t", qos=1)
        with Caller(port, "writer") as writer:
            for first in range(0, MESSAGES, WINDOW):
                numbers = range(first, first + WINDOW)
                writer.say(
                    *(
                        Publish(
                            "t", n.to_bytes(4, "big") + bytes(SIZE), 1, packet_id=n % 100 + 1
                        )
                        for n in numbers
                    )
                )
                assert len(writer.hear_packets(WINDOW)) == WINDOW
    finally:
        process.kill()
        process.communicate()

    process, port = start(tmp_path / "journal")
    try:
        got: list[int] = []
        with Caller(port, "away", V4, clean_start=False) as reader:
            assert reader.greeting.session_present
            while len(got) < MESSAGES:
                (message,) = reader.hear_packets(1)
                got.append(int.from_bytes(message.payload[:4], "big"))
                reader.say(PubAck(message.packet_id))
    finally:
        process.kill()
        process.communicate()

    assert got == list(range(MESSAGES))
    figure(f"{MESSAGES * SIZE >> 20} MiB waited for a client, and a SIGKILL: none lost")
