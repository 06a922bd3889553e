"""A real disk of 256 KiB, to fill up."""

import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def on_a_small_disk(tmp_path):
    """Runs Python code, whose argument is the folder of the small disk, and gives the finished process."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("needs user and mount namespaces")
    mount = f"set -e; mount -t tmpfs -o size=256k none {tmp_path}; head -c 128K /dev/zero > {tmp_path}/ballast"

    def run(code: str) -> subprocess.CompletedProcess:
        command = ["unshare", "-rm", "sh", "-c", f'{mount}; exec "$1" -c "$2" {tmp_path}', "sh", sys.executable, code]
        return subprocess.run(command, capture_output=True, text=True)

    return run
