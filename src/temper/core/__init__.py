"""The vocabulary of every room: records, protocols, blame, errors, config, registry. No torch, no I/O."""
