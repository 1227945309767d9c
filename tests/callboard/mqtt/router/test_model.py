"""The router compared with a model of a few lines: receivers and order of messages."""

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from callboard.mqtt.wire.packet import V4, V5
from callboard.mqtt.wire.topic import matches
from tests.callboard.mqtt.stage import Client, Stage

NAMES = st.sampled_from(["ann", "bob", "eve"])
TOPICS = st.sampled_from(["a", "a/b", "a/c", "b", "$x/a"])
FILTERS = st.sampled_from(["a", "a/#", "+/b", "#", "b", "$x/#"])


class RouterModel(RuleBasedStateMachine):
    """Clients with persistent sessions come and go; all filters of a client have its QoS."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.publisher = self.stage.client("publisher")
        self.online: dict[str, Client] = {}
        #: The model: filters by client, what is owed to it, what is kept by topic.
        self.filters: dict[str, dict[str, None]] = defaultdict(dict)
        self.owed: dict[str, list[tuple[str, bytes, bool]]] = defaultdict(list)
        self.kept: dict[str, bytes] = {}
        self.count = 0

    @rule(name=NAMES, version=st.sampled_from([V4, V5]))
    def connect(self, name: str, version: int) -> None:
        expiry = 1_000 if version == V5 else None
        self.online[name] = self.stage.client(name, version=version, clean=False, expiry=expiry)

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        if name in self.online:
            self.collect(name)
            self.online.pop(name).lose()

    @rule(name=NAMES)
    def begin_anew(self, name: str) -> None:
        if name in self.online:
            self.collect(name)
        self.online[name] = self.stage.client(name, clean=True, expiry=1_000)
        self.filters[name] = {}
        self.owed[name] = []

    @rule(name=NAMES, topic_filter=FILTERS)
    def subscribe(self, name: str, topic_filter: str) -> None:
        if name in self.online:
            self.online[name].subscribe(topic_filter, qos=2)
            self.filters[name][topic_filter] = None
            self.owed[name] += [
                (topic, payload, True)
                for topic, payload in self.kept.items()
                if matches(topic, topic_filter)
            ]

    @rule(name=NAMES, topic_filter=FILTERS)
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        if name in self.online:
            self.online[name].unsubscribe(topic_filter)
            self.filters[name].pop(topic_filter, None)

    @rule(topic=TOPICS, qos=st.integers(1, 2), count=st.integers(1, 3), retain=st.booleans())
    def publish(self, topic: str, qos: int, count: int, *, retain: bool) -> None:
        messages = []
        for _ in range(count):
            self.count += 1
            messages.append(str(self.count).encode())
        self.publisher.send(
            *(self.publisher.message(topic, each, qos, retain=retain) for each in messages)
        )
        if retain:
            self.kept[topic] = messages[-1]
        for name, filters in self.filters.items():
            if any(matches(topic, each) for each in filters):
                self.owed[name] += [(topic, each, False) for each in messages]

    @precondition(lambda self: self.kept)
    @rule(topic=TOPICS)
    def forget(self, topic: str) -> None:
        self.publisher.publish(topic, b"", 1, retain=True)
        self.kept.pop(topic, None)
        for name, filters in self.filters.items():
            if any(matches(topic, each) for each in filters):
                self.owed[name].append((topic, b"", False))

    def collect(self, name: str) -> None:
        got = [(each.topic, each.payload, each.retain) for each in self.online[name].messages()]
        live = [each for each in got if not each[2]]
        owed = self.owed.pop(name, [])
        assert sorted(got) == sorted(owed)
        for topic in {topic for topic, _, _ in live}:
            in_order = [each for each in owed if each[0] == topic and not each[2]]
            assert [each for each in live if each[0] == topic] == in_order

    @invariant()
    def everybody_has_what_is_owed(self) -> None:
        for name in self.online:
            self.collect(name)


RouterModel.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
test_the_router_does_what_its_model_does = RouterModel.TestCase
