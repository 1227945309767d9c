"""A router's counts for Prometheus."""

from typing import Final

from callboard.exposition import Labels, Metric, counter, gauge
from callboard.mqtt.door import Door
from callboard.mqtt.machine import RouterMachine

_COUNTED: Final = {
    "connects": "clients that got a session",
    "published": "messages from clients and wills",
    "published_bytes": "bytes of packets with messages from clients",
    "delivered": "messages to subscribers, each one counted",
    "refused": "messages that clients were not allowed to publish",
    "expired": "messages that were not sent because their time was over",
    "too_large": "messages that were not sent because the client takes no such size",
    "lost": "messages that a log dropped before a subscriber had read them",
    "braked": "waits of publishers for readers with QoS 1 or 2 that are far behind",
    "passed_over": "readers with QoS 1 or 2 that were far behind and did nothing",
    "taken_over": "sessions that a second connection took from the first",
    "adopted": "sessions that came from other routers of the cluster",
    "handed_over": "sessions that went to other routers",
    "violations": "connections that ended because the client broke a rule",
    "wills": "wills that were published",
}


def router_metrics(machine: RouterMachine, door: Door) -> list[Metric]:
    """Return the metrics of a router; on its thread."""
    meters, figures = machine.meters, door.figures
    found = [
        counter(f"callboard_mqtt_{name}_total", text, getattr(meters, name))
        for name, text in _COUNTED.items()
    ]
    found += [
        gauge("callboard_mqtt_connections", "clients now", len(machine.connections)),
        gauge(
            "callboard_mqtt_sessions_away", "sessions of absent clients", len(machine.graveyard)
        ),
        gauge(
            "callboard_mqtt_sessions_in_doubt",
            "copies of sessions that their routers have not let go of",
            len(machine.adopted),
        ),
        gauge("callboard_mqtt_filters", "filters that somebody reads", len(machine.routes)),
        gauge("callboard_mqtt_retained", "retained messages", len(machine.retained)),
        gauge("callboard_mqtt_ready_queue", "clients to be served", len(machine.ready)),
        gauge(
            "callboard_mqtt_log_bytes",
            "bytes of messages in memory",
            sum(log.weight for log in machine.routes),
        ),
        counter("callboard_mqtt_bytes_in_total", "bytes from clients", figures.bytes_in),
        counter("callboard_mqtt_bytes_out_total", "bytes to clients", figures.bytes_out),
        counter("callboard_mqtt_timeouts_total", "clients that fell silent", figures.timeouts),
        counter("callboard_mqtt_held_total", "waits of publishers for readers", figures.held),
    ]
    reasons = sorted(figures.refusals.items())
    if reasons:
        name, text = "callboard_mqtt_refusals_total", "clients not let in, by reason"
        samples: list[tuple[Labels, float]] = [
            ((("reason", reason),), float(count)) for reason, count in reasons
        ]
        found.append(Metric(name, "counter", text, samples))
    return found
