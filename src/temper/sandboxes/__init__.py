"""Isolated places where model-written code runs. Each module that defines `create` is a backend (`core.registry`)."""
