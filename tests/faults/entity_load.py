"""Load on entities of other processes, with an account of what must be so in the end."""

import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise

from callboard import ActorRef, Node
from callboard.errors import AskTimeout, EntityUnavailable, JobLost, OutcomeUnknown
from tests.faults.entity_host import Alarm, Entry, Ledger, SetAlarm, Ticket, Tickets

KEYS = 40

#: Sending threads, their keys, and the messages of each to a key at a time.
SENDERS, TICKET_KEYS, AT_ONCE = 4, 20, 3

#: Jobs that wait at most, so that takers can have had all of them when the load ends.
BACKLOG = 500


def until_all_answer(refs: list[ActorRef], question: str) -> float:
    """Return the seconds until every key has answered a question asked from here on.

    All keys are asked at once; asks that fail or take long are repeated.
    """
    began, waiting = time.monotonic(), refs
    while waiting:
        asks = [(ref, ref.ask(question, timeout=0.25)) for ref in waiting]
        waiting = []
        for ref, ask in asks:
            try:
                ask.result(10)
            except (EntityUnavailable, OutcomeUnknown, AskTimeout):
                waiting.append(ref)
        assert time.monotonic() - began < 30, "not within 30 s"
    return time.monotonic() - began


class Client:
    """A node that hosts none, the processes that do, and a load with its account."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        self.url = url
        self.node = stack.enter_context(Node("client"))
        self.node.listen("127.0.0.1", 0)
        self.refs = [self.node.entity(Ledger, f"k-{i}") for i in range(KEYS)]
        #: For each key: numbers that were acknowledged, and that perhaps happened.
        self.acknowledged: list[list[int]] = [[] for _ in range(KEYS)]
        self.unknown: list[set[int]] = [set() for _ in range(KEYS)]
        self.unavailable = 0
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[str]] = []
        stack.callback(self.close)

    def close(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(30)
        for process in self._processes:
            process.kill()
            process.communicate()

    def host(self, *options: str) -> subprocess.Popen[str]:
        """Start a process that hosts; returns when it is a member."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.entity_host", self.node.address, self.url]
            + list(options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip(), "the host did not start"
        return process

    def load(self) -> None:
        """Append numbers, each key on one thread, until `stop`."""
        self._threads = [threading.Thread(target=self._enter, args=(i,)) for i in range(4)]
        for thread in self._threads:
            thread.start()

    def _enter(self, place: int) -> None:
        mine = range(place, KEYS, 4)
        following = dict.fromkeys(mine, 1)
        while not self._ends.is_set():
            asks = [(i, self.refs[i].ask(Entry(following[i]), timeout=10.0)) for i in mine]
            for i, ask in asks:
                try:
                    ask.result(20)
                    self.acknowledged[i].append(following[i])
                except EntityUnavailable:
                    self.unavailable += 1
                    continue  # nothing happened: the same number again
                except (OutcomeUnknown, AskTimeout):
                    self.unknown[i].add(following[i])
                following[i] += 1

    def stop(self) -> None:
        """End the load."""
        self._ends.set()
        for thread in self._threads:
            thread.join(30)

    def until_all_answer(self) -> float:
        """Return the seconds until every key has answered a read that began from here on."""
        return until_all_answer(self.refs, "all")

    def check(self) -> int:
        """Compare the stored numbers with the acknowledged ones; return their count."""
        for i, ref in enumerate(self.refs):
            kept = ref.ask("all", timeout=10.0).result(20)
            twice = sorted(number for number, times in Counter(kept).items() if times > 1)
            assert not twice, f"k-{i} has {twice} twice"
            late = [number for before, number in pairwise(kept) if number < before]
            assert not late, f"k-{i} has {late} after a later number, unknown {self.unknown[i]}"
            missing = set(self.acknowledged[i]) - set(kept)
            assert not missing, f"k-{i} lost {missing}"
            extra = set(kept) - set(self.acknowledged[i]) - self.unknown[i]
            assert not extra, f"k-{i} has {extra}, of which it was said that nothing happened"
        total = sum(map(len, self.acknowledged))
        assert total > KEYS
        return total


class RowLoad:
    """Reminders and jobs under way, with their account."""

    def __init__(self, client: Client) -> None:
        self.node = client.node
        self.alarms = [self.node.entity(Alarm, f"a-{i}") for i in range(8)]
        #: For each alarm: numbers whose reminder was acknowledged.
        self.set: list[list[int]] = [[] for _ in self.alarms]
        self.queue = self.node.queue("faults")
        self.put: set[int] = set()
        self.acknowledged: set[int] = set()
        #: Jobs that were handed out after they had been acknowledged.
        self.again: set[int] = set()
        self.unknown: set[int] = set()
        self._ends = threading.Event()
        work = (self._remind, self._produce, self._take, self._take)
        self._threads = [threading.Thread(target=each) for each in work]
        for thread in self._threads:
            thread.start()

    def _remind(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            asks = [
                each.ask(SetAlarm(number, 0.1 * (number % 20)), timeout=10.0)
                for each in self.alarms
            ]
            for i, ask in enumerate(asks):
                if ask.exception(20) is None:
                    self.set[i].append(number)

    def _produce(self) -> None:
        number = 0
        while not self._ends.is_set():
            if len(self.put) - len(self.acknowledged) > BACKLOG:
                self._ends.wait(0.01)  # a job that nobody took at the end may not exist
                continue
            numbers = range(number + 1, number + 11)
            for number, put in [(n, self.queue.put(n)) for n in numbers]:
                if put.exception(60) is None:
                    self.put.add(number)

    def _take(self) -> None:
        while True:
            try:
                job = self.queue.take(visible_after=2.0, timeout=3.0).result(60)
            except AskTimeout:
                if self._ends.is_set():
                    return
                continue
            if job.value in self.acknowledged:
                self.again.add(job.value)
            error = job.ack().exception(60)
            if error is None:
                self.acknowledged.add(job.value)
            else:
                assert isinstance(error, JobLost | OutcomeUnknown | EntityUnavailable)
                self.unknown.add(job.value)

    def check(self) -> tuple[int, int]:
        """End the load, wait for due reminders and jobs, and compare; return their counts."""
        self._ends.set()
        for thread in self._threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads), "jobs are left to take"
        for i, alarm in enumerate(self.alarms):
            deadline = time.monotonic() + 30
            while True:
                rung = alarm.ask("all", timeout=10.0).result(20)
                missed = set(self.set[i]) - set(rung)
                if not missed:
                    break
                assert time.monotonic() < deadline, f"a-{i} missed {missed}"
            assert len(rung) == len(set(rung)), f"a-{i}: written twice"
        assert not self.again, "acknowledged jobs came again"
        lost = self.put - self.acknowledged - self.unknown
        assert not lost, f"jobs were lost: {lost}"
        return sum(map(len, self.set)), len(self.acknowledged)


class TicketLoad:
    """Numbers of several senders on their way to each key at once, asked and told."""

    def __init__(self, client: Client) -> None:
        self.refs = [client.node.entity(Tickets, f"t-{i}") for i in range(TICKET_KEYS)]
        ways = [(sender, i) for sender in range(SENDERS) for i in range(TICKET_KEYS)]
        #: By sender and key: acknowledged, possible and impossible numbers.
        self.acknowledged: dict[tuple[int, int], set[int]] = {way: set() for way in ways}
        self.unknown: dict[tuple[int, int], set[int]] = {way: set() for way in ways}
        self.refused: dict[tuple[int, int], set[int]] = {way: set() for way in ways}
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(sender,)) for sender in range(SENDERS)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, sender: int) -> None:
        number = 0
        while not self._ends.wait(0.01):
            asks = []
            for step in range(AT_ONCE):
                number += 1
                for i, ref in enumerate(self.refs):
                    if step == 1:
                        ref.tell(Ticket(sender, number))
                        self.unknown[sender, i].add(number)
                    else:
                        ask = ref.ask(Ticket(sender, number), timeout=10.0)
                        asks.append((i, number, ask))
            for i, asked, ask in asks:
                try:
                    ask.result(20)
                    self.acknowledged[sender, i].add(asked)
                except EntityUnavailable:
                    self.refused[sender, i].add(asked)
                except (OutcomeUnknown, AskTimeout):
                    self.unknown[sender, i].add(asked)

    def until_all_answer(self) -> float:
        """Return the seconds until every key has answered a read that began from here on."""
        return until_all_answer(self.refs, "count")

    def stop(self) -> Counter[str]:
        """End the load, and compare; return the count of each kind."""
        self._ends.set()
        for thread in self._threads:
            thread.join(60)
        found: Counter[str] = Counter()
        for i, ref in enumerate(self.refs):
            kept = ref.ask("all", timeout=20.0).result(30)
            assert ref.ask("count", timeout=20.0).result(30) == len(kept)
            for sender in range(SENDERS):
                way = sender, i
                numbers = [number for each, number in kept if each == sender]
                found["acknowledged"] += len(self.acknowledged[way])
                found["refused"] += len(self.refused[way])
                found["missing"] += len(self.acknowledged[way] - set(numbers))
                found["twice"] += len(numbers) - len(set(numbers))
                found["out of order"] += sum(after < one for one, after in pairwise(numbers))
                found["refused and kept"] += len(self.refused[way] & set(numbers))
        return found
