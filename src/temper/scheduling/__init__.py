"""Pure scheduling: which sample starts, which groups are trained, what is held and why. No I/O, no clock."""
