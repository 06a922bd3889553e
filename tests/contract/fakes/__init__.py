"""Chat models without weights that stand in for people's judges: found by their dotted path, as any plugin."""
