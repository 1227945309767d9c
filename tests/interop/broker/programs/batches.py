"""Several topics, several messages at once, and all ways to read."""

import select
import time

import broker


def until_there(subscriber, count):
    """Wait for a number of messages."""
    while subscriber.available() < count:
        time.sleep(0.005)  # the descriptor tells of the first message, not of their number


a, b = broker.Endpoint(), broker.Endpoint()
subscriber = a.make_subscriber(["/t", broker.Topic("/u/x")])
b.peer("127.0.0.1", a.listen("127.0.0.1", 0))
print(
    b.publish_batch(("/t", 1), ("/u/x", 2), ("/u/y", 3), ("/tail", 4), ("/", 5), ("/u/xx", 6))
)
until_there(subscriber, 4)
print(subscriber.get(2))
print(subscriber.poll(), subscriber.poll())
for number in range(5):
    b.publish(broker.Topic("/t") / broker.Topic("n"), number)
until_there(subscriber, 5)
print(subscriber.get(3), subscriber.get(3, 0.1), subscriber.get(3, 0.1))
print(select.select([subscriber.fd()], [], [], 0)[0])
b.publish("/t", "wake")
print(select.select([subscriber.fd()], [], [], 5)[0] == [subscriber.fd()])
print(subscriber.poll(), select.select([subscriber.fd()], [], [], 0)[0])
print(sorted(topic.string() for topic in b.peer_subscriptions()))
subscriber.add_topic("/z", True)
while not select.select([subscriber.fd()], [], [], 0.02)[0]:  # until b knows of the topic
    b.publish("/z/1", "a")
print(subscriber.get())
b.publish("/z/1", "end")
while subscriber.get() != ("/z/1", "end"):
    pass
a.publish("/z", "own messages are not seen")
print(subscriber.get(0.1))
b.shutdown()
a.shutdown()
