"""The statuses that subscribers of both sides receive."""

import select

import broker


def wait_for(subscriber, *wanted):
    """Return the requested number of statuses; some versions do not report paths."""
    paths = (broker.SC.EndpointDiscovered, broker.SC.EndpointUnreachable)
    found = []
    while len(found) < len(wanted):
        assert select.select([subscriber.fd()], [], [], 5)[0], found
        found += [n for n in subscriber.poll() if n.code() not in paths]
    assert len(found) == len(wanted), found
    for notice, code in zip(found, wanted, strict=True):
        print(type(notice).__name__, str(code), notice.code() == code)
        if isinstance(notice, broker.Status):
            network = notice.context().network.get()
            print("  ", network.address, notice.context().node_id() in ids)
            print("  ", str(notice).rsplit(", ", 1)[1])


here, there = broker.Endpoint(), broker.Endpoint()
ids = (here.node_id(), there.node_id())
here_all, here_errors = here.make_status_subscriber(True), here.make_status_subscriber()
there_all = there.make_status_subscriber(receive_statuses=True)
port = there.listen("127.0.0.1", 0)
print(here.peer("127.0.0.1", port, 0))
wait_for(here_all, broker.SC.PeerAdded)
wait_for(there_all, broker.SC.PeerAdded)
for endpoint in (here, there):
    (peer,) = endpoint.peers()
    print(peer.status, peer.peer.node_id() in ids, peer.peer.network.get().address)
print(here.peers()[0].peer.network.get().port == port)
print(here.unpeer("127.0.0.1", port))
wait_for(here_all, broker.SC.PeerRemoved)
wait_for(there_all, broker.SC.PeerLost)
print(len(here.peers()), len(there.peers()))
print(here.unpeer("127.0.0.1", port))
print(here.peer("127.0.0.1", 1, 0))
wait_for(here_all, broker.EC.PeerInvalid, broker.EC.PeerUnavailable)
wait_for(here_errors, broker.EC.PeerInvalid, broker.EC.PeerUnavailable)
print(here_errors.available(), there_all.available() in (0, 1))
print(there.listen("127.0.0.1", port), there.listen("192.0.2.1", 0))
here.shutdown()
there.shutdown()
