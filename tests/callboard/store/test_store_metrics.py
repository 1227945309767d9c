"""What monitoring sees of stores: Broker's names (sheet of features, Prometheus)."""

from callboard import Node
from callboard.figures import exposition
from callboard.store import attach_clone, attach_master
from callboard.topics.hub import Hub
from callboard.topics.monitoring import topic_metrics


def figures(hub: Hub) -> dict[str, float]:
    """Return the samples of stores by name, store and role."""
    return {
        f"{metric.name.removeprefix('broker_store_')} {dict(labels)['type']}": value
        for metric in topic_metrics(hub)
        if metric.name.startswith("broker_store_")
        for labels, value in metric.samples
    }


def test_the_metrics_of_a_master_and_its_clone_have_the_names_of_broker() -> None:
    with Node() as a, Node() as b:
        there, here = Hub.of(a), Hub.of(b)
        assert figures(there) == {}
        a.listen("127.0.0.1", 0)
        master, clone = attach_master(there, "things"), attach_clone(here, "things")
        b.connect(a.address)
        clone.put("k", 1)
        clone.increment("n")
        assert clone.await_idle()
        master.put("k", 2)
        assert master.await_idle()

        assert figures(there) == {
            "input_channels master": 1,
            "output_channels master": 1,
            "out_of_order_updates master": 0,
            "entries master": 2,
            "processed_updates_total master": 3,
            "unacknowledged_updates master": 0,
            "unreadable_total master": 0,
        }
        assert figures(here) == {
            "input_channels clone": 1,
            "output_channels clone": 1,
            "out_of_order_updates clone": 0,
            "entries clone": 2,
            "processed_updates_total clone": 3,
            "unacknowledged_updates clone": 0,
            "unreadable_total clone": 0,
        }
        text = exposition(topic_metrics(there))
        assert "# TYPE broker_store_entries gauge\n" in text
        assert f'broker_store_entries{{endpoint="{there.name}",name="things"' in text


def test_what_is_not_acknowledged_is_seen_and_a_store_that_ended_is_gone() -> None:
    with Node() as node:
        hub = Hub.of(node)
        with attach_clone(hub, "things") as one, attach_clone(hub, "things") as other:
            one.put("k", 1)
            other.put("k", 2)
            assert one.await_idle(0.1) is False
            assert other.await_idle(0.1) is False
            assert figures(hub)["unacknowledged_updates clone"] == 2
            assert figures(hub)["input_channels clone"] == 0
        assert figures(hub) == {}
