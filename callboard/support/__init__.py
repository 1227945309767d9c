"""Small modules that every package uses and that import nothing of the core.

Each module has one subject: objects after a fork (`after_fork`), open files that were replaced
(`file_place`), the depth of values (`nesting`), instances of received values (`construction`),
values as JSON (`json_form`), hosts of pages (`host_guard`), private files (`private_file`),
passwords in texts (`redaction`), async iterators (`items`), the release of callboard
(`release`). Import from these modules.
"""
