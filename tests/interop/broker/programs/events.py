"""Events of Zeek."""

import broker

a, b = broker.Endpoint(), broker.Endpoint()
subscriber = a.make_subscriber("/zeek/event")
b.peer("127.0.0.1", a.listen("127.0.0.1", 0))
b.publish("/zeek/event/ping", broker.zeek.Event("ping", 1, "text", [1, 2], {"k": {1}}))
topic, data = subscriber.get()
print(topic, data)
event = broker.zeek.Event(data)
print(event.valid(), event.name(), event.args(), event.as_data())
print(broker.zeek.Event([1, 2]).valid())
b.publish("/zeek/event/none", broker.zeek.Event("none"))
print(broker.zeek.Event(subscriber.get()[1]).args())
b.shutdown()
a.shutdown()
