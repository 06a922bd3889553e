"""Temper: post-training that turns a fixed base model into one that completes real tasks.

Importing this package does no work and loads neither torch nor ray; rooms are imported by name
(`temper.core`, `temper.engines`, ...). Their order is in docs/architecture.md.
"""

__version__ = "0.1.0"
