"""Before torch is loaded: its threads wait without spinning for long, since tests share the cores with sandboxes."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")
