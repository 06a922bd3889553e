"""Graders, one short file a kind, over one pool of killable workers; `grading.grade` is the way in.

A plugin defines `create(config, pool, sandboxes) -> Verifier`. What runs inside a worker or a sandbox is in `checks`.
"""
