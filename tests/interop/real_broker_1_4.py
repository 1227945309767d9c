"""An endpoint of the real Broker 1.4 that carries out orders, one on each line.

Run by the interpreter that has the package `broker`: reads `repr` of a verb and its arguments,
prints `repr` of the answer.
"""

import ast
import collections
import collections.abc
import sys
import time

collections.Iterable = collections.abc.Iterable  # broker 1.4 was written for Python 3.9

import broker  # noqa: E402


class RealEndpoint:
    """The endpoint; each method is a verb."""

    def __init__(self):
        options = broker.BrokerOptions()
        options.disable_ssl = "--tls" not in sys.argv
        self.endpoint = broker.Endpoint(broker.Configuration(options))
        self.statuses = self.endpoint.make_status_subscriber(True)
        self.subscribers = {}
        self.stores = {}

    def listen(self, port=0):
        return self.endpoint.listen("127.0.0.1", port)

    def peer(self, port):
        """Peer; a connection that is ending takes a second attempt."""
        return self.endpoint.peer("127.0.0.1", port, 1)

    def unpeer(self, port):
        return self.endpoint.unpeer("127.0.0.1", port)

    def subscribe(self, topic):
        self.subscribers[topic] = self.endpoint.make_subscriber(topic)

    def forward(self, topic):
        self.endpoint.forward([broker.Topic(topic)])

    def get(self, topic, count):
        """Return a number of messages, with values as text."""
        return [(name, repr(value)) for name, value in self.subscribers[topic].get(count)]

    def count(self, topic, count):
        """Receive numbers; return whether each was one more than the previous one."""
        take, seen, in_order = self.subscribers[topic].get, 0, True
        while seen < count:
            for _, (number, *_) in take(min(count - seen, 100)):
                in_order = in_order and number == seen
                seen += 1
        return in_order

    def publish(self, topic, value):
        self.endpoint.publish(topic, value)

    def flood(self, topic, count):
        """Publish numbers."""
        publish = self.endpoint.publish
        for number in range(count):
            publish(topic, [number, "hello"])

    def echo(self, topic, answer, count):
        """Answer a number of messages."""
        subscriber, publish = self.subscribers[topic], self.endpoint.publish
        for _ in range(count):
            publish(answer, subscriber.get()[1])

    def rounds(self, topic, answer, count):
        """Return the seconds of a number of round trips."""
        subscriber, started = self.subscribers[answer], time.monotonic()
        for number in range(count):
            self.endpoint.publish(topic, number)
            subscriber.get()
        return time.monotonic() - started

    def told(self):
        """Return what statuses say."""
        return [str(status.code()) for status in self.statuses.poll()]

    def peers(self):
        return [str(topic) for topic in self.endpoint.peer_subscriptions()]

    def attach(self, kind, name):
        """Make a master or a clone."""
        if kind == "master":
            store = self.endpoint.attach_master(name, broker.Backend.Memory)
        else:
            store = self.endpoint.attach_clone(name)
        self.stores[name] = store
        return store is not None

    def store(self, name, verb, *arguments):
        """Call a method of a store."""
        return repr(getattr(self.stores[name], verb)(*arguments))

    def shutdown(self):
        """Return the seconds that it took."""
        started = time.monotonic()
        self.endpoint.shutdown()
        return time.monotonic() - started


def main():
    """Answer until the input ends."""
    real = RealEndpoint()
    for line in sys.stdin:
        verb, *arguments = ast.literal_eval(line)
        print(repr(getattr(real, verb)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
