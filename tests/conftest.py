"""Before torch is loaded: its threads wait without spinning for long, since tests share the cores with sandboxes."""

import os

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@pytest.fixture(scope="module")
def one_thread():
    """Two threads on a tiny model only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
