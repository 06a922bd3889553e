"""Where workers run: a module a place, each `create(config)` giving a `core.protocols.Executor`."""
