"""Every type of data, sent and received."""

import datetime
import ipaddress

import broker

utc = datetime.UTC
VALUES = [
    None,
    True,
    -(2**63),
    2**63 - 1,
    0.5,
    -1.5e300,
    "text",
    "t\u00e4xt",
    b"bytes",
    b"\xff\xfe",
    ipaddress.ip_address("192.168.1.1"),
    ipaddress.ip_address("2001:db8::1"),
    ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_network("2001:db8::/32"),
    datetime.datetime(2020, 2, 29, 12, 30, 15, tzinfo=utc),
    datetime.timedelta(days=-1, seconds=7),
    [1, [2, (3,)], []],
    {1, 2, 3},
    {"a": 1, "b": {"c": {5}}},
    {("k", 1): (1, 2)},
    [],
    set(),
    {},
]
a, b = broker.Endpoint(), broker.Endpoint()
subscriber = a.make_subscriber("/data")
b.peer("127.0.0.1", a.listen("127.0.0.1", 0))
for value in VALUES:
    b.publish("/data", value)
    topic, got = subscriber.get()
    print(topic, type(got).__name__, got)
for value in (broker.Count(2**64 - 1), broker.Port(80, broker.Port.TCP), broker.Enum("A::B")):
    b.publish("/data", value)
    got = subscriber.get()[1]
    print(type(got).__name__, str(got), got == value)
vector = broker.Vector([broker.Data(1)])
vector.append(broker.Data("two"))
table = broker.Table()
table[broker.Data("k")] = broker.Data(vector)
members = broker.Set()
members.add(broker.Data(1))
b.publish("/data", [broker.Data(vector), table, members])
print(subscriber.get())
got = {1}
b.publish("/data", got)
got.add(2)
received = subscriber.get()[1]
received.add(3)
print(got, received)
for wrong in (object(), [object()]):
    try:
        b.publish("/data", wrong)
    except (TypeError, OverflowError, RuntimeError):
        print("refused")
b.shutdown()
a.shutdown()
