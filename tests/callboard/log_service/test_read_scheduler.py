"""Who is served next, who waits, who is refused: questions in, effects out, no clock."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.commitlog.folder import LAST_OFFSET
from callboard.log_service import messages, read_scheduler
from callboard.log_service.read_scheduler import Fetch, LogPlace, ReadScheduler, Refuse, Tell

FILE = "00000000000000000000.log"
CODEC = PayloadCodec(DEFAULT_REGISTRY)
READ = messages.ReadLogFile("cpu", FILE, 0, 100)


def test_each_peer_gets_one_read_in_turn():
    desk = ReadScheduler()
    for number in range(3):
        assert desk.add_read(b"greedy", READ, number, 0.0) is None
    assert desk.add_read(b"modest", READ, "m", 0.0) is None
    assert [each.ticket for each in desk.serve(lambda _: 0, 0.0)] == [0, "m"]
    assert [each.ticket for each in desk.serve(lambda _: 0, 0.0)] == [1]
    assert [each.ticket for each in desk.serve(lambda _: 0, 0.0)] == [2]
    assert not desk.has_reads


def test_a_peer_that_takes_nothing_is_served_when_it_does_or_refused_after_a_time():
    desk = ReadScheduler()
    for at in range(3):
        desk.add_read(b"slow", READ, at, float(at))
    assert desk.serve(lambda _: read_scheduler.TAKEN_WITHIN, 1.0) == []
    assert desk.serve(lambda _: read_scheduler.TAKEN_WITHIN - 1, 1.0) == [Fetch(0, READ)]
    (refused,) = desk.serve(
        lambda _: read_scheduler.TAKEN_WITHIN, 1.0 + read_scheduler.HELD_SECONDS
    )
    assert refused == Refuse(1, "the link to the reader was full for 30 s")
    assert desk.has_reads


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(read_scheduler, "WAITS_PER_PEER", 100)
    monkeypatch.setattr(read_scheduler, "WAITS", 800)
    desk = ReadScheduler()
    for number in range(read_scheduler.READS_PER_PEER):
        assert desk.add_read(b"p", READ, number, 0.0) is None
    assert desk.add_read(b"p", READ, -1, 0.0) == Refuse(
        -1, "1,024 reads of the reader's node are queued already"
    )
    assert desk.add_read(b"q", READ, -1, 0.0) is None
    question, place = messages.AwaitLogGrowth("cpu", FILE, 5), LogPlace(FILE, 5)
    for number in range(read_scheduler.WAITS_PER_PEER):
        assert desk.add_wait(b"p", question, number, place, 0.0) is None
    assert isinstance(desk.add_wait(b"p", question, -1, place, 0.0), Refuse)
    for number in range(read_scheduler.WAITS - read_scheduler.WAITS_PER_PEER):
        peer = b"%d" % (number % 50)
        assert desk.add_wait(peer, question, ("more", number), place, 0.0) is None
    assert isinstance(desk.add_wait(b"z", question, -1, place, 0.0), Refuse)


def test_growth_is_told_once_and_in_any_case_after_a_time():
    desk, question = ReadScheduler(), messages.AwaitLogGrowth("cpu", FILE, 5)
    assert desk.add_wait(b"p", question, "now", LogPlace(FILE, 6), 0.0) == Tell(
        "now", LogPlace(FILE, 6)
    )
    assert desk.add_wait(b"p", question, "later", LogPlace(FILE, 5), 0.0) is None
    assert desk.awaited == ["cpu"]
    assert list(desk.due_replies("cpu", LogPlace(FILE, 5), 19.9)) == []
    assert list(desk.due_replies("cpu", LogPlace(FILE, 9), 19.9)) == [
        Tell("later", LogPlace(FILE, 9))
    ]
    assert desk.awaited == []
    assert desk.add_wait(b"p", question, "late", LogPlace(FILE, 5), 0.0) is None
    assert list(desk.due_replies("cpu", LogPlace(FILE, 5), 20.0)) == [
        Tell("late", LogPlace(FILE, 5))
    ]


def test_figures_tell_of_the_readers_that_were_heard_of_last():
    desk = ReadScheduler()
    for number in range(100):
        desk.add_read(b"p", messages.ReadLogFile("cpu", FILE, number, 1, number), 0, 0.0)
        desk.serve(lambda _: 0, float(number) / 10)
    found = list(desk.readers(60.0))
    assert [reader.at for _, reader in found] == list(range(37, 101))
    assert len(list(desk.readers(68.0))) == 20
    assert not list(desk.readers(1e9))


class Questions(RuleBasedStateMachine):
    """Every question is answered once, whatever comes in which order."""

    def __init__(self):
        super().__init__()
        self.desk, self.now, self.count = ReadScheduler(), 0.0, 0
        self.open, self.loads = set(), {}

    def answered(self, effects):
        for effect in effects:
            self.open.remove(effect.ticket)

    @rule(
        peer=st.sampled_from([b"p", b"q"]),
        log=st.sampled_from(["cpu", "gpu"]),
        size=st.integers(0, 2),
    )
    def ask(self, peer, log, size):
        self.count += 2
        self.open |= {self.count, self.count + 1}
        refused = self.desk.add_read(peer, READ, self.count, self.now)
        question = messages.AwaitLogGrowth(log, FILE, size)
        place = LogPlace(FILE, 1)
        answer = self.desk.add_wait(peer, question, self.count + 1, place, self.now)
        self.answered(each for each in (refused, answer) if each)

    @rule(
        load=st.dictionaries(
            st.sampled_from([b"p", b"q"]), st.integers(0, 2 * read_scheduler.TAKEN_WITHIN)
        )
    )
    def serve(self, load):
        self.answered(self.desk.serve(lambda peer: load.get(peer, 0), self.now))

    @rule(log=st.sampled_from(["cpu", "gpu"]), size=st.integers(0, 2))
    def due_replies(self, log, size):
        self.answered(self.desk.due_replies(log, LogPlace(FILE, size), self.now))

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def who_waits_has_asked(self):
        assert self.open or not (self.desk.has_reads or self.desk.awaited)

    def teardown(self):
        while self.desk.has_reads:
            self.answered(self.desk.serve(lambda _: 0, self.now))
        for log in self.desk.awaited:
            self.answered(self.desk.due_replies(log, LogPlace(), self.now))
        assert not self.open


TestQuestions = Questions.TestCase


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=100))
def test_bytes_of_a_file_are_equal_after_a_round_trip(size, data):
    packed = messages.FileBytes(size, data).pack()
    assert messages.unpack_file_bytes(packed) == (size, data)
    for cut in range(8):
        try:
            messages.unpack_file_bytes(packed[:cut])
        except ValueError:
            continue
        raise AssertionError(cut)


TEXTS = st.one_of(
    st.text(max_size=30), st.sampled_from(["cpu", FILE, "synced", "../x", "lock"])
)
ANYTHING = st.one_of(TEXTS, st.integers(), st.floats(), st.none(), st.lists(st.integers()))


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_whatever_is_asked_is_refused_or_harmless(log, file, at, size, reader):
    read = messages.ReadLogFile(log, file, at, size, reader)
    assert repr(CODEC.decode_message(CODEC.encode(read))) == repr(read)
    if not messages.objection(read):
        assert not {"/", "lock"} & {*log, *file, file}
        assert min(at, size, reader) >= 0
        assert max(at, size, reader) <= LAST_OFFSET
    wait = messages.AwaitLogGrowth(log, file, size)
    if not messages.objection(wait):
        assert "/" not in file
        assert -1 <= size <= LAST_OFFSET
