"""Figures of the source tree's structure, held to limits that only go down.

`python -m scripts.structure` measures the source and compares it with `limits.toml`;
`python -m scripts.structure.publish_path` shows the way of an MQTT PUBLISH, file by file.
"""
