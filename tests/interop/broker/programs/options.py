"""Options, configuration, version, small things."""

import broker

options = broker.BrokerOptions()
names = ("disable_ssl", "forward", "ignore_broker_conf", "ttl", "use_real_time")
print([getattr(options, name) for name in names])
options.disable_ssl = True
options.ttl = 3
configuration = broker.Configuration(options)
names = ("cafile", "capath", "certificate", "key", "passphrase")
print([getattr(configuration, "openssl_" + name) for name in names], configuration.max_threads)
for wrong in (
    (options, "ttl", "x"),
    (options, "bogus", 1),
    (configuration, "max_threads", "x"),
):
    try:
        setattr(*wrong)
    except (TypeError, AttributeError):
        print("refused")
a, b = broker.Endpoint(configuration), broker.Endpoint(configuration)
print(b.peer("127.0.0.1", a.listen("127.0.0.1", 0), 0))
configuration.max_threads = 2
print(a.forward(["/x", "/y"]), b.forward("/z"))
print(broker.Version.string(), broker.Version.MAJOR, broker.Version.compatible(2))
print(type(broker.now()).__name__, broker.now() <= broker.now())
print(broker.Topic("/a") / broker.Topic("b"), broker.Topic("/a").string())
print(int(broker.Backend.SQLite), int(broker.Frontend.Master), int(broker.APIFlags.Blocking))
print(broker.EC.PeerInvalid == 3, broker.SC.PeerLost, broker.PeerStatus.Peered)
print(broker.Status(), broker.Error())
print(repr(a) == a.node_id(), a.node_id() != b.node_id(), str(a) == a.node_id())
for publish in (lambda: a.publish(5, 1), lambda: a.make_subscriber(5), lambda: a.publish("/t")):
    try:
        publish()
    except TypeError:
        print("refused")
a.shutdown()
b.shutdown()
