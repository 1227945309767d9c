"""A program that sends from inside callboard's own calls, at each step of them.

    python tests/callboard/support/reentrant.py opcodes OUTER INNER
    python tests/callboard/support/reentrant.py chance SEED COUNT
    python tests/callboard/support/reentrant.py garbage SECONDS [WAY]

The first one calls OUTER repeatedly. Each time it calls INNER before another opcode that OUTER
executes in callboard, as a finalizer or a signal handler would be called. It ends with status 1
and the stacks of all threads if a call hangs or a message is lost.

WAY is how garbage sends: `del` and `finalize` do it themselves, `warning` warns while
`warnings.showwarning` sends, and `unraisable` raises while `sys.unraisablehook` sends.

It runs without the checked locks of the suite, because it breaks their rules on purpose.
"""

import faulthandler
import gc
import itertools
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from weakref import finalize

from callboard import Actor, Endpoint, Entity, Node, handler, message
from callboard.actors.errors import CallboardError
from callboard.actors.mailbox import Mailbox
from callboard.actors.reference import current_cell

ROOT = str(Path(__file__).parents[3])
OURS = tuple(f"{ROOT}/{package}/" for package in ("actors", "basp", "callboard", "proxies"))

#: Is never set: to wait for a moment.
PAUSE = threading.Event()

#: Seconds without progress after which it counts as a hang.
HANG = 60.0


@message("reentrant.Number")
@dataclass(frozen=True)
class Number:
    sender: str
    number: int


class Sink(Actor):
    """Records its messages, in order."""

    def __init__(self, got):
        self.got = got

    @handler
    def on_number(self, msg: Number) -> int:
        self.got.append((msg.sender, msg.number))
        return msg.number


class BoundedSink(Sink):
    mailbox = Mailbox(limit=100_000, bytes=1 << 30)


class Nothing(Actor):
    """Is spawned."""

    @handler
    def on_number(self, msg: Number) -> int:
        return msg.number


class Cart(Entity):
    name = "reentrant.Cart"

    def __init__(self):
        self.got = []

    @handler
    def on_number(self, msg: Number) -> int:
        GOT["entity"].append((msg.sender, msg.number))
        return msg.number


GOT = {name: [] for name in ("local", "bounded", "remote", "entity", "topic")}


class World:
    """Two nodes with everything that can be sent to."""

    def __init__(self):
        self.far, self.near = Node("far"), Node("near")
        self.far.listen("127.0.0.1", 0)
        self.near.connect(self.far.address)
        self.local = self.near.spawn(Sink, GOT["local"])
        self.bounded = self.near.spawn(BoundedSink, GOT["bounded"])
        self.remote = self.near.ref(str(self.far.spawn(Sink, GOT["remote"])))
        self.folder = tempfile.TemporaryDirectory()
        self.far.host(Cart)
        self.far.queue("jobs", state=f"sqlite:{self.folder.name}/jobs.db")
        self.jobs = self.near.queue("jobs")
        self.entity = self.near.entity(Cart, "one")
        self.entity.ask(Number("start", 0)).result(HANG)
        GOT["entity"].clear()
        self.endpoint = Endpoint(node=self.near)
        self.store = self.endpoint.attach_master("reentrant")
        self.group = self.near.group("reentrant")
        self.near.register("reentrant", self.local)
        self.numbers = Counter()
        self.futures = []

    def next(self, target, sender):
        self.numbers[target, sender] += 1
        return Number(sender, self.numbers[target, sender])

    # --- the calls ---

    def tell_local(self, sender):
        self.local.tell(self.next("local", sender))

    def tell_bounded(self, sender):
        self.bounded.tell(self.next("bounded", sender))

    def tell_remote(self, sender):
        self.remote.tell(self.next("remote", sender))

    def tell_entity(self, sender):
        self.entity.tell(self.next("entity", sender))

    def ask_local(self, sender):
        self.futures.append(self.local.ask(self.next("local", sender), HANG))

    def ask_remote(self, sender):
        self.futures.append(self.remote.ask(self.next("remote", sender), HANG))

    def ask_entity(self, sender):
        self.futures.append(self.entity.ask(self.next("entity", sender), HANG))

    def publish(self, sender):
        self.endpoint.publish("/reentrant", sender)

    def put(self, sender):
        self.store.put(sender, 1)

    def spawn(self, sender):
        self.near.spawn(Nothing).stop()

    def spawn_and_tell(self, sender):
        ref = self.near.spawn(Nothing)
        self.futures.append(ref.ask(Number(sender, 0), HANG))
        ref.stop()

    def register(self, sender):
        self.near.register("reentrant", self.local)

    def find(self, sender):
        self.futures.append(self.near.find("reentrant"))

    def join(self, sender):
        self.group.join(self.local)

    def monitor(self, sender):
        self.near.monitor(self.remote)
        self.near.monitor(self.local)

    def timer(self, sender):
        self.near.runtime.call_later(0.0, int)
        self.near.runtime.call_later(100.0, int).cancel()

    def queue_put(self, sender):
        self.futures.append(self.jobs.put(Number(sender, 0)))

    def blocking(self, sender):
        """Wait where that may be for ever: it has to be refused, or to end."""
        try:
            self.remote.ask(Number("blocking", 0), HANG).result(HANG)
        except CallboardError:
            pass

    # --- the checks at the end ---

    def settle(self):
        """Wait until everything has arrived, in order, once."""
        deadline = time.monotonic() + HANG
        for name, got in GOT.items():
            while True:
                sent = list(self.numbers.items())
                wanted = {s: n for (t, s), n in sent if t == name}
                last = dict.fromkeys(wanted, 0)
                for sender, number in list(got):
                    if sender in last:  # one that is not has begun since
                        if number != last[sender] + 1:
                            fail(f"{name}: {sender} sent {last[sender] + 1}, and {number} came")
                        last[sender] = number
                if last == wanted:
                    break
                if time.monotonic() > deadline:
                    fail(f"{name}: {wanted} were sent, {last} came")
                PAUSE.wait(0.01)
        futures, self.futures = self.futures, []
        for future in futures:
            future.result(HANG)


def fail(text):
    print(text, flush=True)
    faulthandler.dump_traceback(sys.stdout, all_threads=True)
    sys.stdout.flush()
    import os

    os._exit(1)


class Interruption:
    """Calls something once, before the opcode of some number that this thread executes."""

    def __init__(self, at, inner, files=OURS):
        self.at, self.inner, self.count, self.files = at, inner, 0, files

    def __call__(self, frame, event, _arg):
        if not frame.f_code.co_filename.startswith(self.files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                self.inner("inner")
        return self


def run(call, *args):
    """Call on a separate thread; a hang ends the program."""
    errors = []

    def body():
        try:
            call(*args)
        except BaseException as error:  # noqa: BLE001  # raised again by `run`
            errors.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(HANG)
    if thread.is_alive():
        fail(f"{call} hangs")
    if errors:
        raise errors[0]


def interrupted(outer, at, inner):
    """Call `outer`, interrupted once; return whether it has that many opcodes."""
    interruption = Interruption(at, inner)

    def body():
        sys.settrace(interruption)
        try:
            outer("outer")
        finally:
            sys.settrace(None)

    run(body)
    return interruption.count >= at


def opcodes(world, outer, inner):
    outer_call, inner_call = getattr(world, outer), getattr(world, inner)
    run(outer_call, "outer")
    run(inner_call, "inner")
    at = 1
    while interrupted(outer_call, at, inner_call):
        at += 1
        if at % 100 == 0:
            world.settle()
    world.settle()
    print(f"{outer}: {inner} before each of {at - 1} opcodes")


SENDS = [
    *("tell_local", "tell_bounded", "tell_remote", "tell_entity"),
    *("ask_local", "ask_remote", "ask_entity", "publish", "put"),
    *("spawn", "spawn_and_tell", "register", "find", "join", "monitor", "timer", "queue_put"),
]


#: Calls that set no context variable; the `__init__` of an actor runs with one set.
SENDS_THAT_SET_NOTHING = [each for each in SENDS if not each.startswith("spawn")]


def chance(world, seed, count):
    """Interrupt calls by others at opcodes that are drawn."""
    rng = random.Random(seed)
    for number in range(count):
        outer, inner = rng.choice(SENDS), rng.choice([*SENDS, "blocking"])
        interrupted(getattr(world, outer), rng.randrange(1, 600), getattr(world, inner))
        if number % 100 == 99:
            world.settle()
    world.settle()


def make_garbage_send(way, send):
    """Return a class whose garbage calls `send`, as its way is."""

    class Cycle:
        def __init__(self):
            self.me = self

    class Deleted(Cycle):
        def __del__(self):
            send()

    class Finalized(Cycle):
        def __init__(self):
            super().__init__()
            finalize(self, send).atexit = False

    class Warned(Cycle):
        def __del__(self):
            warnings.warn("it was not closed", ResourceWarning, stacklevel=1)

    class Raising(Cycle):
        def __del__(self):
            msg = "it was not closed"
            raise ValueError(msg)

    warnings.simplefilter("always", ResourceWarning)
    warnings.showwarning = lambda *_args, **_options: send()
    sys.unraisablehook = lambda _: send()
    return {
        "del": Deleted,
        "finalize": Finalized,
        "warning": Warned,
        "unraisable": Raising,
    }[way]


def garbage(world, seconds, way):  # noqa: C901
    """Send from finalizers that the collector calls, and from a signal handler."""
    rng = random.Random(1)
    # Python 3.11 collects garbage inside `ContextVar.set`, and crashes if that sets one, too.
    entity_sends = itertools.count()
    names = SENDS if sys.version_info >= (3, 12) else SENDS_THAT_SET_NOTHING
    end = time.monotonic() + seconds
    depth = threading.local()

    def send():
        """Send under a name for this depth on this thread: one sender is in order.

        Inside a handler its actor is the sender, named by its number: the address of its cell
        may be another one's next. An entity's asks of itself are handled before other messages,
        so the asks of entities are counted separately.
        """
        depth.now = getattr(depth, "now", 0) + 1
        try:
            cell = current_cell.get()
            actor = "" if cell is None else f"{cell.runtime.name}/{cell.number}"
            sender = f"{threading.get_ident()} {depth.now} {actor}"
            if cell is not None and cell.chain_name:
                sender += f" {next(entity_sends)}"
            getattr(world, rng.choice(names))(sender)
        except Exception:  # noqa: BLE001  # a finalizer's would be printed, and forgotten
            fail(f"a send from garbage failed: {traceback.format_exc()}")
        finally:
            depth.now -= 1

    def send_in_time():
        if time.monotonic() < end:
            send()
            sent[0] += 1

    sent = [0]
    cycle = make_garbage_send(way, send_in_time)

    def on_signal(*_):
        send()

    signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    last = [time.monotonic()]

    def watch():
        while True:
            PAUSE.wait(0.5)
            if time.monotonic() - last[0] > HANG:
                fail("it hangs")

    def others():
        while time.monotonic() < end:
            cycle()
            send()
            PAUSE.wait(0.001)  # others are on this machine, too

    threading.Thread(target=watch, daemon=True).start()
    threads = [threading.Thread(target=others, daemon=True) for _ in range(2)]
    gc.collect()
    gc.freeze()  # so that each of the many collections is short
    gc.set_threshold(1)
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        cycle()
        send()
        PAUSE.wait(0.001)
        last[0] = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0)
    for thread in threads:
        thread.join(HANG)
        if thread.is_alive():
            fail("a thread hangs")
    gc.set_threshold(700, 10, 10)
    last[0] = time.monotonic()
    world.settle()
    if sent[0] < 10:
        fail(f"garbage has sent {sent[0]} times")


def main(kind, *args):
    faulthandler.enable()
    world = World()
    if kind == "opcodes":
        for inner in args[1].split(","):
            opcodes(world, args[0], inner)
    elif kind == "chance":
        chance(world, int(args[0]), int(args[1]))
    else:
        garbage(world, float(args[0]), args[1] if args[1:] else "del")
    print("ok", flush=True)
    import os

    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
