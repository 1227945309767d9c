"""A plain Thespian program: only the system base is callboard's.

Run it with `python examples/thespian_program.py`.
"""

from thespian.actors import Actor, ActorExitRequest, ActorSystem

import callboard.actors  # after this import Thespian finds the base by its name  # noqa: F401


class Greeter(Actor):
    def receiveMessage(self, message: object, sender: object) -> None:
        if isinstance(message, str):
            helper = self.createActor(Shouter)
            self.send(helper, (message, sender))


class Shouter(Actor):
    def receiveMessage(self, message: object, sender: object) -> None:
        if isinstance(message, tuple):
            text, asker = message
            self.send(asker, f"Hello, {text}!".upper())
            self.send(self.myAddress, ActorExitRequest())


def main() -> None:
    system = ActorSystem("callboard")
    try:
        greeter = system.createActor(Greeter)
        print(system.ask(greeter, "world", 5))
    finally:
        system.shutdown()


if __name__ == "__main__":
    main()
