"""Two endpoints answer each other."""

import broker

alice, bob = broker.Endpoint(), broker.Endpoint()
pings = bob.make_subscriber("/ping")
pongs = alice.make_subscriber("/pong")
port = bob.listen("127.0.0.1", 0)
print(alice.peer("127.0.0.1", port))
for number in range(10):
    alice.publish("/ping/" + str(number), [number, "hello"])
    topic, value = pings.get()
    bob.publish("/pong", (topic, value))
    print(pongs.get(5.0))
print(pings.available(), pongs.poll(), pongs.get(0.05))
alice.shutdown()
bob.shutdown()
