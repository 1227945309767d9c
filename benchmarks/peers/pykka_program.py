"""The measured work with pykka; run by the Python of the peers' environment.

    pykka_program.py N      N one-way messages from actor to actor, inside one handler

It prints its rate, after a tenth of the work as warm-up.
"""

import sys
import time

import pykka


class Sink(pykka.ThreadingActor):
    """Counts numbers; answers anything else with the count, and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_receive(self, message: object) -> int | None:
        """Handle any message."""
        if isinstance(message, int):
            self.seen += 1
            return None
        seen, self.seen = self.seen, 0
        return seen


class Flooder(pykka.ThreadingActor):
    """Fires all messages inside one handler, then asks the sink for its count."""

    def __init__(self, sink: pykka.ActorRef[Sink]) -> None:
        super().__init__()
        self.sink = sink

    def on_receive(self, message: int) -> float:
        """Send messages; return the seconds until the sink has all of them."""
        tell = self.sink.tell
        started = time.perf_counter()
        for number in range(message):
            tell(number)
        seen = self.sink.ask("count")
        took = time.perf_counter() - started
        if seen != message:
            sys.exit(f"the sink saw {seen} of {message}")
        return took


def main(count: int) -> None:
    """Measure and print."""
    flooder = Flooder.start(Sink.start())
    flooder.ask(max(1, count // 10))
    print("rate", count / flooder.ask(count), flush=True)
    pykka.ActorRegistry.stop_all()


if __name__ == "__main__":
    main(int(sys.argv[1]))
