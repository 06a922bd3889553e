"""Stages of a run, one file each: `Config` and `run(shop, config)`. A recipe chains them in its order."""
