"""Who is told that a socket is ready, by epoll and by the loop's own means."""

import asyncio
import socket

import pytest

from callboard.mqtt.port.poller import READABLE, WRITABLE, LoopPoller, make_poller


class Owner:
    """Notes what it is told, and may do something then."""

    def __init__(self, then=lambda: None):
        self.told = []
        self.then = then
        self.moved = asyncio.Event()

    def readable(self):
        self._note("readable")

    def writable(self):
        self._note("writable")

    def _note(self, what):
        self.told.append(what)
        self.moved.set()
        self.then()


@pytest.fixture(params=[make_poller, LoopPoller])
def around(request):
    """Return what runs a coroutine function with a poller and a pair of sockets."""

    def run(work):
        async def main():
            poller = request.param(asyncio.get_running_loop())
            pairs = [socket.socketpair() for _ in range(2)]
            try:
                await asyncio.wait_for(work(poller, *pairs), 10)
            finally:
                poller.close()
                for sock in (*pairs[0], *pairs[1]):
                    sock.close()

        asyncio.run(main())

    return run


def test_an_owner_is_told_until_it_has_read_everything(around):
    async def work(poller, pair, _):
        ours, theirs = pair
        owner = Owner(lambda: ours.recv(1))
        poller.watch(ours.fileno(), owner, READABLE)
        theirs.send(b"abc")
        while len(owner.told) < 3:
            owner.moved.clear()
            await owner.moved.wait()
        await asyncio.sleep(0)
        assert owner.told == ["readable"] * 3

    around(work)


def test_an_owner_is_told_of_the_end_and_that_it_may_write(around):
    async def work(poller, pair, other):
        reader, writer = Owner(), Owner()
        reader.then = lambda: poller.watch(pair[0].fileno(), reader, 0)
        writer.then = lambda: poller.watch(other[0].fileno(), writer, 0)
        poller.watch(pair[0].fileno(), reader, READABLE)
        pair[1].close()
        await reader.moved.wait()
        assert reader.told == ["readable"]

        poller.watch(other[0].fileno(), writer, READABLE)
        poller.watch(other[0].fileno(), writer, READABLE | WRITABLE)
        await writer.moved.wait()
        assert writer.told == ["writable"]

    around(work)


def test_who_is_forgotten_is_told_nothing(around):
    async def work(poller, one, two):
        first, second = Owner(), Owner()
        first.then = lambda: poller.watch(one[0].fileno(), first, 0)
        poller.watch(one[0].fileno(), first, READABLE)
        poller.watch(two[0].fileno(), second, READABLE)
        two[1].send(b"a")
        poller.watch(two[0].fileno(), second, 0)
        one[1].send(b"a")
        await first.moved.wait()
        await asyncio.sleep(0)
        assert (first.told, second.told) == (["readable"], [])

    around(work)


def test_one_that_is_told_may_forget_the_next_of_the_same_look(around):
    async def work(poller, one, two):
        owners = {pair[0].fileno(): Owner() for pair in (one, two)}

        def forget_all():
            for descriptor, owner in owners.items():
                poller.watch(descriptor, owner, 0)

        for (descriptor, owner), pair in zip(owners.items(), (one, two), strict=True):
            owner.then = forget_all
            poller.watch(descriptor, owner, READABLE)
            pair[1].send(b"a")
        moved = [asyncio.ensure_future(owner.moved.wait()) for owner in owners.values()]
        await asyncio.wait(moved, return_when=asyncio.FIRST_COMPLETED)
        for each in moved:
            each.cancel()
        assert [told for owner in owners.values() for told in owner.told] == ["readable"]

    around(work)
