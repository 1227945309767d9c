"""Backends that record calls."""

from callboard.channel import Consumer, Producer


class Station:
    """Backend of producers and consumers: `sent` and `told` hold every call, in order."""

    def __init__(self, nil_answer=None):
        self.sent = []
        self.told = []
        self.nil_answer = nil_answer

    def send(self, sender, *args):
        self.sent.append((sender, *args))

    def broadcast(self, sender, msg):
        self.sent.append((sender, "all", msg))

    def drop(self, sender, hdl, reason):
        self.told.append((sender, "drop", hdl, reason))

    def handshake_completed(self, sender, hdl):
        self.told.append((sender, "completed", hdl))

    def consume(self, receiver, payload):
        self.told.append((receiver, "consume", payload))

    def consume_nil(self, receiver):
        self.told.append((receiver, "nil"))
        return self.nil_answer

    def close(self, receiver, error):
        self.told.append((receiver, "close", error))

    def take_sent(self):
        """Return the messages sent since the last call, without the sender."""
        taken, self.sent = [call[1:] if len(call) > 2 else call[1] for call in self.sent], []
        return taken

    def take_told(self):
        """Return the callbacks since the last call, without who called."""
        taken, self.told = [call[1:] for call in self.told], []
        return taken


def producer(**options):
    station = Station()
    return Producer(station, **options), station


def consumer(nil_answer=None, **options):
    station = Station(nil_answer)
    return Consumer(station, **options), station
