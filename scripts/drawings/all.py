"""All pictures, by the files that they are written to."""

from pathlib import Path
from typing import Final

from scripts.drawings import (
    channel,
    cluster_pipeline,
    glance,
    handshake,
    house,
    log,
    message,
    mqtt_router,
    rights,
    routing,
    stores,
    supervision,
    takeover,
)
from scripts.drawings.charts.groups import charts
from scripts.drawings.place import DOCS
from scripts.films.all import films

DRAWINGS: Final = {
    "glance": glance.draw,
    "house": house.draw,
    "message": message.draw,
    "handshake": handshake.draw,
    "routing": routing.draw,
    "supervision": supervision.draw,
    "stores": stores.draw,
    "channel": channel.draw,
    "mqtt-router": mqtt_router.draw,
    "log": log.draw,
    "cluster-pipeline": cluster_pipeline.draw,
    "rights": rights.draw,
    "takeover": takeover.draw,
}


def pictures() -> dict[Path, str]:
    """Return what each file of a picture has to hold."""
    drawings = {DOCS / "drawings" / f"{name}.svg": draw() for name, draw in DRAWINGS.items()}
    return drawings | charts() | films()
