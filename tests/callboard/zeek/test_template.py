"""The forms of messages: what is read by them is what the parser reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.model.errors import EndpointError
from callboard.zeek import template
from callboard.zeek.json_message import message_of_frame, parse_frame
from callboard.zeek.template import MessageTemplates


def node(kind, data):
    return {"@data-type": kind, "data": data}


def vector(*nodes):
    return node("vector", list(nodes))


def event(name, *arguments):
    one = node("count", 1)
    return vector(one, one, vector(node("string", name), vector(*arguments)))


def text_of(value, topic="/t", **how):
    return json.dumps(
        {"type": "data-message", "topic": topic, **value}, ensure_ascii=False, **how
    )


def parsed(text):
    return message_of_frame(parse_frame(text))


def forms_of(*texts):
    """Return the forms that are learned where each of these comes twice."""
    forms = MessageTemplates()
    for text in texts:
        for _ in range(2):
            forms.learn(text, parsed(text))
    return forms


SCALARS = {
    "boolean": (True, False),
    "count": (0, 7, 2**63),
    "integer": (0, -7, -(2**63)),
    "real": (0.5, -2, 1e300, -0.0),
    "string": ("hi", "", "grün", "@data-type"),
    "enum-value": ("Notice::LOG", "A"),
    "address": ("10.0.0.1", "2001:db8::1"),
    "subnet": ("10.0.0.0/8", "::/0"),
    "port": ("80/tcp", "53/udp"),
    "timestamp": ("2026-01-31T12:30:00.123", "1970-01-01T00:00:00.000"),
    "timespan": ("1.5s", "3ms"),
}


@pytest.mark.parametrize("kind", SCALARS)
@pytest.mark.parametrize("how", [{}, {"separators": (",", ":")}], ids=["blanks", "compact"])
def test_a_message_that_differs_in_a_scalar_is_read_by_the_form(kind, how):
    first, second, *_ = SCALARS[kind]
    forms = forms_of(text_of(event("ping", node("string", "x"), node(kind, first)), **how))
    text = text_of(event("ping", node("string", "y"), node(kind, second)), **how)

    assert forms.match(text) == parsed(text)


@pytest.mark.parametrize(
    "value",
    [
        node("count", 7),
        vector(node("count", 2), node("string", "x")),
        event("ping"),
        event("ping", node("none", {}), vector(), vector(node("count", 1), node("none", {}))),
    ],
    ids=["scalar", "vector", "no arguments", "nested"],
)
def test_all_values_of_scalars_and_vectors_have_forms(value):
    text = text_of(value)

    assert forms_of(text).match(text) == parsed(text)


def test_events_of_several_shapes_have_a_form_each():
    texts = [
        text_of(event(name, *[node("count", 7)] * count), topic)
        for name in ("ping", "pong")
        for count in (1, 2)
        for topic in ("/a", "/b")
    ]
    forms = forms_of(*texts)

    assert [forms.match(text) for text in texts] == [parsed(text) for text in texts]


KNOWN = text_of(event("ping", node("string", "x"), node("count", 7)))


@pytest.mark.parametrize(
    "text",
    [
        KNOWN.replace('"x"', '"a\\"b"'),
        KNOWN.replace('"x"', '"a\\\\"'),
        KNOWN.replace('"x"', '"\x01"'),
        KNOWN.replace("7}", "07}"),
        KNOWN.replace("7}", "-7}"),
        KNOWN.replace("7}", "7.0}"),
        KNOWN.replace("7}", "٧}"),
        KNOWN.replace("7}", f"{2**64}}}"),
        KNOWN.replace("7}", '7,"data":8}'),
        KNOWN + "}",
        KNOWN[:-1],
        KNOWN + " ",
        KNOWN.replace('"ping"', '"pong"'),
        KNOWN.replace('"/t"', '"/u"'),
        "",
        "[]",
    ],
)
def test_what_has_another_form_is_left_to_the_parser(text):
    assert forms_of(KNOWN).match(text) is None


@pytest.mark.parametrize(
    "text",
    [
        text_of(event("ping", node("set", [node("count", 7)]))),
        text_of(event("ping", node("string", 'a"b'))),
        KNOWN.replace("7}", '7,"data":8}'),
        KNOWN.replace('"type"', '"topic":"/x","type"'),
        KNOWN.replace(
            '{"@data-type": "count", "data": 7}', '{"data": 7, "@data-type": "count"}'
        ),
    ],
    ids=["set", "escape", "key twice", "topic twice", "other order"],
)
def test_what_is_odd_has_no_form(text):
    assert forms_of(text).match(text) is None


def test_the_first_of_a_kind_is_not_learned_from():
    forms = MessageTemplates()
    forms.learn(KNOWN, parsed(KNOWN))

    assert forms.match(KNOWN) is None


def test_forms_are_bounded(monkeypatch):
    monkeypatch.setattr(template, "ALIKE_LIMIT", 2)
    texts = [text_of(event(f"e{number}")) for number in range(4)]
    forms = forms_of(*texts)

    assert [forms.match(text) is None for text in texts] == [False, False, True, True]

    long = text_of(event("ping", node("string", "x" * template.LENGTH_LIMIT)))
    assert forms_of(long).match(long) is None


def test_a_message_without_a_type_and_one_with_it_behind_the_topic_have_forms():
    for start in ('{"topic": "/t", ', '{"topic": "/t", "type": "data-message", '):
        text = start + text_of(node("count", 7)).partition('"topic": "/t", ')[2]

        assert forms_of(text).match(text) == parsed(text)


nodes = st.recursive(
    st.one_of(
        *[st.sampled_from(data).map(lambda data, kind=kind: node(kind, data))
          for kind, data in SCALARS.items()],
        st.text(max_size=4).map(lambda text: node("string", text)),
        st.just(node("none", {})),
    ),
    lambda inner: st.lists(inner, max_size=4).map(lambda items: vector(*items)),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(nodes, min_size=1, max_size=4), st.data())
def test_forms_read_what_the_parser_reads(values, data):
    texts = [text_of(event("ping", value)) for value in values]
    forms = forms_of(*texts)
    text = data.draw(st.sampled_from(texts))
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.text('0 1"\\{}[]:,-.e', max_size=2)) + text[at + 1 :]

    for each in (text, changed):
        message = forms.match(each)
        if message is not None:
            assert message == parsed(each)
    try:
        parsed(changed)
    except EndpointError:
        assert forms.match(changed) is None
