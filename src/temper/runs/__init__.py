"""The driver: a recipe becomes stages, stages meet engines, sandboxes and verifiers, and all of it can be resumed."""
