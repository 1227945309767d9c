# What each Zeek loads: it tells refused connections, and drops whom the detector names.
@load base/frameworks/netcontrol

module Detector;

export {
    global rejected: event(id: conn_id);
    global drop: event(a: addr, t: interval, why: string);
}

event zeek_init() {
    Cluster::subscribe("/detector/do");
    # Zeek 7 and older: Broker::subscribe; zeekctl of 8.1 and later listens by itself.
    Cluster::listen_websocket([$listen_addr=127.0.0.1, $listen_port=27759/tcp]);
}

event connection_rejected(c: connection) {
    Cluster::publish("/detector/seen", Detector::rejected, c$id);
}

event Detector::drop(a: addr, t: interval, why: string) {
    NetControl::drop_address(a, t, why);
}
