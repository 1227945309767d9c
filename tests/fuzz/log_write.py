"""Log-writes of Zeek: damaged ones at the decoder."""

import random
from typing import Any

from callboard.commitlog.record import decode_value
from callboard.model.errors import InvalidData
from callboard.zeek.log_write import LogField, LogType, LogWriteDecoder, encode_log_write
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes

_VALUES: dict[LogType, Any] = {
    LogType.BOOL: True,
    LogType.INT: -7,
    LogType.COUNT: 2**63,
    LogType.DOUBLE: 0.5,
    LogType.TIME: 1.7e9,
    LogType.INTERVAL: 2.5,
    LogType.STRING: b"a\xffb",
    LogType.ENUM: "tcp",
    LogType.PORT: (443, 1),
    LogType.ADDR: "2001:db8::1",
    LogType.SUBNET: "10.0.0.0/8",
    LogType.FUNC: "f",
    LogType.FILE: "stdout",
}
_MESSAGES = 12


def _message(rng: random.Random) -> bytes:
    """Return a log-write with fields of chance."""
    fields, row = [], []
    for number in range(rng.randrange(1, 12)):
        kind = rng.choice(list(LogType))
        inner = None
        if kind not in _VALUES:
            inner = rng.choice(list(_VALUES))
        fields.append(LogField(f"f{number}", kind, inner, rng.random() < 0.5))
        value = _VALUES[kind if inner is None else inner]
        row.append(value if inner is None else [value] * rng.randrange(3))
    rows = [
        [None if rng.random() < 0.3 else value for value in row]
        for _ in range(rng.randrange(4))
    ]
    return encode_log_write(rng.choice(["conn", "dns", "../x"]), fields, rows)


class LogWrites:
    """Feeds messages, some of them damaged, to one decoder, which knows their fields."""

    name = "log-write"

    def make(self, seed: int) -> Case:
        """Return messages."""
        rng = random.Random(seed)
        whole = [_message(rng) for _ in range(3)]
        found = [rng.choice(whole) for _ in range(_MESSAGES)]
        return {
            "messages": [
                mutate_bytes(rng, each, whole) if rng.random() < 0.7 else each for each in found
            ]
        }

    def run(self, case: Case) -> int:
        """Decode them: records that can be read, or a typed error."""
        decoder = LogWriteDecoder()
        for message in case["messages"]:
            try:
                header, records = decoder.decode(message)
            except InvalidData:
                continue
            names = [field.name for field in header.fields]
            for record in records:
                require(list(decode_value(record)) == names, "a record has other fields")
        return _MESSAGES
