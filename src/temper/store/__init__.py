"""The append-only record of a run: logs of records, checkpoints, sinks. Readable while it is written. No torch."""
