"""Small parts that every package uses, and that import nothing of the core.

Each file is one idea with one owner: what a forked child does (`after_fork`), files that are
replaced under their owner (`file_place`), the depth of values (`nesting`), instances of what
was sent (`construction`), JSON of values (`json_form`), hosts of pages (`host_guard`), private
files (`private_file`), passwords in texts (`redaction`), async iterators (`items`) and the
release of callboard (`release`). Import from these modules.
"""
