"""Runs a command as a plain user, where the tests run as root: in a mount namespace that lets it enter the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AS_NOBODY = """
set -e
mount -t tmpfs none /mnt
n=0
for path in "$PREFIX" "$REPOSITORY"; do n=$((n+1)); mkdir /mnt/$n; mount --rbind "$path" /mnt/$n; done
for path in $BLOCKED; do mount -t tmpfs -o mode=755 none "$path"; done
n=0
for path in "$PREFIX" "$REPOSITORY"; do n=$((n+1)); mkdir -p "$path"; mount --rbind /mnt/$n "$path"; done
exec setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp "$@"
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def as_plain_user() -> Run:
    """Runs this Python with arguments as user 65534; skips where the tests are a plain user's already."""
    if os.geteuid() != 0:
        pytest.skip("is a plain user already")
    prefix = Path(sys.base_prefix)
    above = [*reversed(prefix.parents), *reversed(ROOT.parents)]
    blocked = {str(path) for path in above if not path.stat().st_mode & 0o001}  # cannot be entered by others
    first = [path for path in sorted(blocked) if not any(path.startswith(f"{other}/") for other in blocked)]
    settings = {"PREFIX": str(prefix), "REPOSITORY": str(ROOT), "BLOCKED": " ".join(first)}
    settings |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", AS_NOBODY, "sh", sys.executable]

    def run(*argv: str, seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*unshare, *argv], env={**os.environ, **settings}, capture_output=True, text=True, cwd="/", timeout=seconds
        )

    return run
