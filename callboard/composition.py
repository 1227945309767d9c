"""The parts of callboard by name: the only module that may name all packages.

A package never imports a package above it. If it needs such a part, or one that few programs
use, it loads the part from a slot of `callboard.support.slots`. This module fills these slots
with names. A part is imported when it is loaded.
"""

from callboard.support import slots

slots.COMMANDS.fill(
    {
        "node": "callboard.cli.node",
        "cluster": "callboard.cli.cluster",
        "actor": "callboard.cli.actor",
        "topic": "callboard.cli.topic",
        "entity": "callboard.cli.entity",
        "queue": "callboard.cli.durable.queue",
        "flow": "callboard.cli.flow",
        "gateway": "callboard.cli.gateway",
        "log": "callboard.cli.log",
        "store": "callboard.cli.store",
        "mqtt": "callboard.cli.mqtt",
        "pipeline": "callboard.cli.pipeline",
        "zeek": "callboard.cli.zeek",
        "compat": "callboard.cli.compat",
    }
)

slots.WIRES.fill(
    {
        "zeek-1.4": "callboard.zeek.doors.broker_1_4:Broker14Peering",
        "zeek-2": "callboard.zeek.doors.zeek_peering:ZeekPeering",
    }
)

slots.DOORS.fill(
    {
        "websocket client": "callboard.zeek.doors.web_socket_peer:WebSocketPeer",
        "websocket server": "callboard.zeek.doors.web_socket_server:WebSocketServer",
        "zeromq flows": "callboard.flow.zeromq",
    }
)

slots.BACKENDS.fill(
    {
        "postgresql state": "callboard.entity.state.postgresql:PostgresqlState",
        "postgresql view": "callboard.entity.state.postgresql:PostgresqlView",
        "postgresql leases": "callboard.lease.postgresql:PostgresqlLeases",
        "etcd leases": "callboard.lease.etcd:EtcdLeases",
    }
)

slots.NODE_PARTS.fill(
    {
        "backup": "callboard.backup.service:answer",
        "dashboard": "callboard.dashboard:DashboardServer",
    }
)

slots.NODE_WIRES.fill(
    {
        "caf-0.17": "callboard.caf.node_wire:CafWire",
        "caf": "callboard.caf.node_wire:CafWire",
    }
)

slots.LOG_OPENERS.fill(
    {
        "basp": "callboard.log_service.node_disk:NodeDisk",
        "basp names": "callboard.log_service.node_disk:names_at",
    }
)

slots.OPENERS.fill({"convention": "callboard.convention.membership:Membership"})

slots.TASK_MODULES.fill({"spark": "callboard.pipeline.spark.format"})
