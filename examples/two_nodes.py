"""Two nodes and a monitor: spawn by address, ask, and learn how the actor ended.

Run it with `python examples/two_nodes.py`.
"""

from callboard import Actor, Node, handler


class Echo(Actor):
    @handler
    def text(self, message: str) -> str:
        return message.upper()


def main() -> None:
    with Node("host", spawnable={"echo": Echo}) as host, Node("guest") as guest:
        host.listen("127.0.0.1", 0)
        echo = guest.remote_spawn(host.address, "echo")
        down = guest.monitor(echo)
        print(echo.ask("hello").result(5))
        echo.kill()
        print(down.result(5).reason)


if __name__ == "__main__":
    main()
