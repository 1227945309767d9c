"""The table of links, compared with a model of plain lists."""

from hypothesis import given
from hypothesis import strategies as st

from callboard.gateway.broker import LinkTable

ENDS = st.integers(0, 4)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "forget"]),
        st.one_of(st.none(), ENDS),
        ENDS,
    ),
    max_size=40,
)


@given(ACTS)
def test_links_are_counted_as_a_list_of_them_would(acts):
    table: LinkTable[int] = LinkTable()
    model: list[tuple[int | None, int]] = []

    for act, source, sink in acts:
        if act == "add":
            table.add(source, sink)
            model.append((source, sink))
        elif act == "remove":
            assert table.remove(source, sink) == ((source, sink) in model)
            if (source, sink) in model:
                model.remove((source, sink))
        else:
            table.forget(sink)
            model = [link for link in model if sink not in link]
        assert len(table) == len(model)

    for module in range(5):
        sinks = {k for s, k in model if s == module or (s is None and k != module)}
        assert sorted(table.sinks_of(module)) == sorted(sinks)
        assert set(table.sources_of(module)) == {s for s, k in model if k == module}


def test_a_star_never_leads_from_the_sink_to_itself():
    table: LinkTable[str] = LinkTable()

    table.add(None, "sink")
    assert table.sinks_of("sink") == ()
    assert table.sinks_of("anyone") == ("sink",)

    table.add("sink", "sink")
    assert table.sinks_of("sink") == ("sink",)
