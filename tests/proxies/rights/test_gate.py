"""Whatever a hostile leaf sends: nothing passes its gate but what a simple model allows."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from callboard.actors.envelope import Envelope
from callboard.basp.errors import MalformedPayload, PayloadTooHeavy
from callboard.basp.frame import pack_frame
from callboard.basp.header import (
    CORE_ACTOR,
    DIRECTORY,
    HEADER,
    HEADER_SIZE,
    INSPECTOR,
    MESSAGE_ID_MASK,
    NODE_ACTOR,
    NOT_PERMITTED,
    POSITION_SHIFT,
    RESPONSE,
    SPAWN_SERVER,
    Operation,
)
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.cbor.pieces import find_references
from callboard.cbor.plain import write_plain
from callboard.proxies.errors import NotPermitted
from callboard.proxies.inspection import Inspect
from callboard.proxies.messages import (
    ANSWER_HEAD,
    CarriedAnswers,
    Describe,
    DrainNode,
    LinkActors,
    Lookup,
    Spawn,
    StopActor,
    WatchName,
    failure_of,
)
from callboard.proxies.rights import gate as gates
from callboard.proxies.rights.gate import LeafGate
from callboard.proxies.rights.permissions import Principal
from callboard.proxies.rights.rights import Rights

ME, LEAF, NEAR, FAR = (bytes([n]) * 18 for n in (1, 2, 3, 4))
NODES = {ME: "shop", NEAR: "office", FAR: "bank", LEAF: "probe"}
ACTORS = {20: ("till",), 21: ("safe",), 22: ("Till",), 23: ("till", "pool"), 24: ()}
NAMES = ["till", "safe", "Till", "pool", "absent"]


class Ref:
    def __init__(self, node, number):
        self.node_id, self.actor_id = node, number


codec = PayloadCodec(
    DEFAULT_REGISTRY,
    ref_types=(Ref,),
    ref_to_pair=lambda ref: (ref.node_id, ref.actor_id),
    pair_to_ref=Ref,
)


class Host:
    inspections = (Inspect,)
    read = staticmethod(codec.decode_message)

    def names_of(self, number):
        return ACTORS.get(number, ())

    def offered_as(self, request):
        return request.name

    def name_of(self, node):
        return NODES.get(node, "")

    def is_behind(self, node):
        return node in {NEAR, FAR}

    def write_error(self, text):
        return codec.encode(failure_of(NotPermitted(text)))


def frame(operation, data, destination, number, payload=b"", source=LEAF, source_actor=0):
    return (operation, len(payload), data, source, destination, source_actor, number, payload)


PATTERNED = ("names", "send", "monitor", "spawn", "stop", "link", "reach")
operations = st.sampled_from(sorted(Operation))
nodes = st.sampled_from([ME, ME, ME, NEAR, FAR, LEAF])
numbers = st.sampled_from([0, 1, 2, 3, 4, 5, 15, *ACTORS, 99])
keys = st.tuples(nodes, st.sampled_from([*ACTORS, 99]))
patterns = st.lists(st.sampled_from([*NAMES, "*", "t*", "off*", "?ill", "bank"]), max_size=2)
refs = st.builds(lambda key: Ref(*key), keys)
own_refs = st.builds(Ref, st.just(LEAF), st.just(99))
plain = st.sampled_from(["hi", 5, None, [], {"a": 1}])
orders = st.one_of(
    st.builds(Lookup, st.sampled_from([*NAMES, 5])),
    st.builds(WatchName, st.sampled_from(NAMES), st.booleans()),
    st.just(Describe()),
    st.builds(Spawn, st.sampled_from(NAMES), st.tuples(st.one_of(plain, refs))),
    st.builds(StopActor, st.sampled_from([*ACTORS, 3, 99])),
    st.builds(LinkActors, st.sampled_from([*ACTORS, 3, 99]), st.one_of(own_refs, refs, plain)),
    st.just(Inspect()),
    st.just(DrainNode(1.0)),
)
contents = st.one_of(plain, refs, st.lists(st.one_of(plain, refs), max_size=3), orders)


PARTS = {
    **{Lookup: DIRECTORY, WatchName: DIRECTORY, Describe: DIRECTORY, Spawn: SPAWN_SERVER},
    **{StopActor: NODE_ACTOR, LinkActors: NODE_ACTOR, Inspect: INSPECTOR, DrainNode: INSPECTOR},
}


def refs_in(value):
    if isinstance(value, Ref):
        return [(value.node_id, value.actor_id)]
    if isinstance(value, list | tuple):
        return [key for each in value for key in refs_in(each)]
    if isinstance(value, Spawn):
        return refs_in(value.args)
    return refs_in(value.other) if isinstance(value, LinkActors) else []


class HostileLeaf(RuleBasedStateMachine):
    @initialize(
        rights=st.fixed_dictionaries(
            dict.fromkeys(
                ("names", "send", "monitor", "spawn", "stop", "link", "reach"), patterns
            )
            | {"inspect": st.booleans(), "drain": st.booleans()}
            | {"publish": st.sampled_from([[], ["/a"]])}
        )
    )
    def begin(self, rights):
        self.rights = rights
        self.gate = LeafGate(Host(), ME, LEAF, Principal("sensor", Rights(**rights)))
        self.given, self.told = {}, set()
        self.count = 0

    # --- the model ---

    def has(self, right, name):
        return any(fnmatchcase(name, pattern) for pattern in self.rights[right])

    def has_for(self, right, key):
        names = ACTORS.get(key[1], ()) if key[0] == ME else ()
        return any(self.has(right, name) for name in names or ("",))

    def reaches(self, node):
        return node == ME or (node in {NEAR, FAR} and self.has("reach", NODES[node]))

    def may_send(self, node, number, message):
        if any(key[0] != LEAF and key not in self.given for key in refs_in(message)):
            return False
        kind = type(message)
        if number >= 16:
            return (node, number) in self.given or self.has_for("send", (node, number))
        if number == CORE_ACTOR:
            return node == ME and bool(self.rights["publish"])
        if number == INSPECTOR:
            right = {Inspect: "inspect", DrainNode: "drain"}.get(kind)
            return right is not None and self.rights[right]
        if number == NODE_ACTOR:
            if kind is StopActor:
                return message.number >= 16 and self.has_for("stop", (node, message.number))
            return (
                kind is LinkActors
                and message.number >= 16
                and isinstance(message.other, Ref)
                and message.other.node_id == LEAF
                and self.has_for("link", (node, message.number))
            )
        if number == DIRECTORY:
            if kind is Describe:
                return True
            named = kind in {Lookup, WatchName} and isinstance(message.name, str)
            return named and self.has("names", message.name)
        return number == SPAWN_SERVER and kind is Spawn and self.has("spawn", message.name)

    # --- what the leaf does ---

    @rule(
        node=nodes,
        number=numbers,
        message=contents,
        ask=st.booleans(),
        source=st.sampled_from([LEAF, LEAF, LEAF, ME, NEAR]),
    )
    def dispatches(self, node, number, message, ask, source):
        self.send(node, number, message, ask, source)

    @rule(node=nodes, order=orders)
    def orders(self, node, order):
        self.send(node, PARTS[type(order)], order, True, LEAF)

    def send(self, node, number, message, ask, source):
        self.count += 1
        data = self.count << POSITION_SHIFT | (77 if ask else 0)
        sent = frame(2, data, node, number, codec.encode(message), source)
        passed = self.gate.admit([sent])

        if source != LEAF or not self.reaches(node):
            assert passed == []
        elif self.may_send(node, number, message):
            assert passed == [sent]
        else:
            (refused,) = passed  # it keeps its place, its asker is known, and nothing else
            assert (refused[2], refused[3:7]) == (data, (LEAF, node, 0, NOT_PERMITTED))
            assert type(codec.decode_message(refused[7])) is str
            assert self.gate.refusals
        self.gate.refusals.clear()

    @rule(message=contents, node=nodes)
    def answers(self, message, node):
        data = RESPONSE | 5 << POSITION_SHIFT | 9
        sent = frame(2, data, node, 25, codec.encode(message))
        passed = self.gate.admit([sent])

        if not self.reaches(node):
            assert passed == []
        elif all(key[0] == LEAF or key in self.given for key in refs_in(message)):
            assert passed == [sent]
        else:
            assert codec.decode_message(passed[0][7]).kind == "NotPermitted"
            assert passed[0][:7] == (2, len(passed[0][7]), *sent[2:7])

    @rule(key=keys)
    def announces(self, key):
        self.gate.unwatched.clear()
        passed = self.gate.admit([frame(3, 1, *key)])

        has_sender = self.has_for("monitor", key) or self.has_for("link", key)
        may = self.reaches(key[0]) and (has_sender or key in self.given or key in self.told)
        assert bool(passed) == may
        if may and has_sender:
            self.told.add(key)
        is_unwatched = self.reaches(key[0]) and key not in self.told
        assert self.gate.unwatched == ([key] if is_unwatched else [])

    @rule(
        operation=st.sampled_from(sorted(Operation)), node=nodes, source=nodes, number=numbers
    )
    def says_other_things(self, operation, node, source, number):
        if operation in {2, 3}:
            return
        passed = self.gate.admit([frame(operation, 1, node, number, source=source)])
        own = source == LEAF and self.reaches(node)
        assert bool(passed) == (own and operation in {4, 11, 12, 13, 14})
        if own and operation == Operation.RELEASE_PROXY_INSTANCE:
            self.told.discard((node, number))

    # --- what goes to it ---

    @rule(source=nodes, actor=st.sampled_from([0, 3, *ACTORS]), message=contents, to=nodes)
    def is_sent(self, source, actor, message, to):
        sent = pack_frame(2, 5, source, to, actor, 30, codec.encode(message))
        is_let_out = self.gate.lets_out(sent)

        assert is_let_out == (to == LEAF and self.reaches(source))
        if is_let_out:
            for key in [(source, actor), *refs_in(message)]:
                if key[0] != LEAF and key[1] >= 16:
                    self.given[key] = True

    @rule(key=keys)
    def is_told_of_an_end(self, key):
        down = pack_frame(4, 1, key[0], LEAF, key[1], 0, b"")
        assert self.gate.lets_out(down) == (self.reaches(key[0]) and key in self.told)
        if self.reaches(key[0]):
            self.told.discard(key)

    @invariant()
    def tables_are_bounded(self):
        if hasattr(self, "gate"):
            assert set(self.gate._granted) == set(self.given)


TestHostileLeaf = HostileLeaf.TestCase
TestHostileLeaf.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def gate_of(**rights):
    return LeafGate(Host(), ME, LEAF, Principal("sensor", Rights(**rights)))


def test_a_node_that_may_not_be_reached_is_answered_in_order_and_its_account_ends():
    gate = gate_of()
    for n in range(3):
        data = n << POSITION_SHIFT | (n + 1)
        assert not gate.lets_out(pack_frame(2, data, FAR, LEAF, 7, 30, b"\x81\x01"))
    answers = [HEADER.unpack_from(answer) for node, answer in gate.answers if node == FAR]
    replies = [fields for fields in answers if fields[0] == 2]

    assert [fields[2] >> POSITION_SHIFT & 0xFFFFFF for fields in replies] == [0, 1, 2]
    assert [fields[2] & MESSAGE_ID_MASK for fields in replies] == [1, 2, 3]
    assert {fields[3:] for fields in replies} == {(LEAF, FAR, 0, 7)}
    assert gate.answers[-1][1][HEADER_SIZE:] == write_plain([[0, 0, 3, 0]])


def test_what_was_given_is_bounded_and_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(gates, "ACTORS_LIMIT", 5)
    gate = gate_of(monitor=["*"])
    for number in range(100, 120):
        gate.lets_out(pack_frame(2, 0, ME, LEAF, number, 30, b"\x81\x01"))
        gate.admit([frame(3, 1, ME, number)])

    assert [number for _, number in gate._granted] == [115, 116, 117, 118, 119]
    assert len(gate._watched) == 5
    assert gate.unwatched[-1] == (ME, 119)  # told at once instead of not at all


def test_lookups_that_nobody_answers_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(gates, "LOOKUP_LIMIT", 8)
    gate = gate_of(names=["till"], reach=["*"])
    payload = codec.encode(Lookup("till"))

    for number in range(1, 100):
        ask = frame(2, 1 << POSITION_SHIFT | number, NEAR, DIRECTORY, payload)
        assert gate.admit([ask]) == [ask]  # it is sent all the same

    assert len(gate._lookups) == 8


def test_what_is_called_so_elsewhere_is_known_by_what_was_looked_up():
    gate = gate_of(names=["till"], monitor=["till"], reach=["office"])
    ask = frame(2, 1 << POSITION_SHIFT | 9, NEAR, DIRECTORY, codec.encode(Lookup("till")))
    assert gate.admit([ask]) == [ask]
    gate.lets_out(pack_frame(2, RESPONSE | 9, NEAR, LEAF, 0, 0, codec.encode(Ref(NEAR, 40))))
    gate.lets_out(pack_frame(2, 0, NEAR, LEAF, 41, 30, codec.encode("hi")))

    assert gate.admit([frame(3, 1, NEAR, 40)])
    assert gate.unwatched == []
    assert gate.admit([frame(3, 1, NEAR, 41)])
    assert gate.unwatched == [(NEAR, 41)]


@given(contents, st.booleans())
def test_refs_are_found_wherever_they_stand(message, is_large):
    whole = [message, "x" * 300, bytes(range(256)) * 2, {"key": [message]}]
    payload = codec.encode(whole * (300 if is_large else 1))

    found = find_references(payload, 10_000_000)

    expected = refs_in(message) * 2 * (300 if is_large else 1)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    "odd",
    [
        "81dabf08",
        "81da0000bf088252" + "01" * 18 + "14",  # a longer head is read all the same
        "81d9bf089f52" + "01" * 18 + "14ff",  # an open array
        "81d9bf08825f52" + "01" * 18 + "ff14",  # an open string
        "81d9bf08a152" + "01" * 18 + "14",
        "81d9bf0883" + "52" + "01" * 18 + "1414",
        "9fd9bf088252" + "01" * 18 + "14ff",
        "81d9bf08d9bf048252" + "01" * 18 + "14",  # a tuple
    ],
)
def test_a_ref_in_another_form_does_not_pass_unseen(odd):
    payload = bytes.fromhex(odd)
    gate = gate_of(send=["*"])
    try:
        assert find_references(payload, 1000) == [(ME, 20)]
    except MalformedPayload:
        pass
    passed = gate.admit([frame(2, 0, ME, 21, payload)])
    assert passed[0][6] == NOT_PERMITTED


def test_answers_that_go_together_do_not_pass_for_a_ref_in_them_would_not_be_seen():
    gate = gate_of()
    hidden = codec.encode(Ref(ME, 21))
    payload = codec.encode(CarriedAnswers(ANSWER_HEAD.pack(9, len(hidden)), hidden))
    data = RESPONSE | 5 << POSITION_SHIFT

    (passed,) = gate.admit([frame(2, data, ME, 0, payload, source_actor=1)])
    assert passed[:3] == (2, len(passed[7]), data)
    assert codec.decode_message(passed[7]).kind == "NotPermitted"
    assert gate.refusals


def test_who_hides_a_ref_among_many_items_is_refused():
    payload = codec.encode([[1] * 300_000, Ref(ME, 21)])
    with pytest.raises(PayloadTooHeavy):
        find_references(payload, gates.REFS_WITHIN)
    assert gate_of(send=["*"]).admit([frame(2, 0, ME, 20, payload)])[0][6] == NOT_PERMITTED


def test_a_deadline_hides_no_message(monkeypatch):
    monkeypatch.setattr(Host, "read", lambda _, payload: Envelope(Lookup("safe"), None, 1.0))
    sent = frame(2, 0, ME, DIRECTORY, codec.encode(Lookup("till")))
    assert gate_of(names=["till"]).admit([sent])[0][6] == NOT_PERMITTED
