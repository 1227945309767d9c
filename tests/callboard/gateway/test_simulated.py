"""Gateways on simulated nodes: virtual time, and links that break."""

from callboard.gateway import Gateway, offer_module
from tests.callboard.gateway.cast import Recorder


def test_a_timer_keeps_virtual_time(cluster):
    (node,) = cluster(1)
    sink = Recorder()
    with Gateway(node) as gateway:
        gateway.add_module("clock", "timer", {"period": 60})
        gateway.add_module("sink", sink)
        gateway.link("clock", "sink")
        gateway.start()

        cluster.advance(601.0)

        assert sink.contents == [b"%d" % number for number in range(1, 11)]
    assert sink.calls == ["create", "start", "destroy"]


def test_a_remote_module_is_recreated_when_its_node_is_reachable_again(cluster):
    here, there = cluster(2)
    made = []

    class Kept(Recorder):
        def create(self, args):
            made.append(self)

    offer_module(there, Kept, "kept")
    with Gateway(here) as gateway:
        gateway.start()
        gateway.add_module("clock", "timer", {"period": 1})
        place = {"address": there.address, "module.name": "kept"}
        gateway.add_module("far", {"name": "remote", "entrypoint": place})
        gateway.link("clock", "far")
        cluster.advance(5.5)
        cluster.partition(here, there)
        cluster.advance(4.0)
        cluster.heal()
        cluster.advance(20.0)

        assert len(made) >= 2
        numbers = [int(content) for one in made for content in one.contents]
        assert numbers == sorted(set(numbers))
        counters = next(s.counters for s in gateway.modules() if s.name == "far")
        lost = sum(counters.lost.values())
        assert counters.received + lost >= 29
        assert counters.received <= len(numbers)
