"""Where metrics and events go besides the store; each module's `create(config, run)` gives a `core.protocols.Sink`."""
