"""Builds the sandbox helper: a hatchling build hook, and `python native/build.py` for a checkout.

Compiles native/*.c with the system's C compiler ($CC, else cc) to src/temper/sandboxes/helper: static where the C
library can be linked statically (it starts faster and needs nothing inside a sandbox), else dynamic.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, without the build backend
    BuildHookInterface = object  # type: ignore[assignment,misc]

HERE = Path(__file__).resolve().parent
HELPER = HERE.parent / "src" / "temper" / "sandboxes" / "helper"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fstack-protector-strong", "-pthread")


class HelperHook(BuildHookInterface):
    """Runs for wheels and editable installs; marks the wheel as made for this platform."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        build()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def build() -> Path:
    """Compiles the helper and puts it in place in one step. Raises SystemExit with what to do."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise SystemExit(
            f"temper: expected a C compiler called {compiler[0]!r} for the sandbox helper, found none: "
            "install gcc or clang (Debian, Ubuntu: apt-get install gcc libc6-dev), or set CC"
        )
    fresh = HELPER.with_name(f".helper-{os.getpid()}")
    sources = sorted(str(path) for path in HERE.glob("*.c"))
    for linking in (["-static"], []):
        done = subprocess.run([*compiler, *FLAGS, *linking, "-o", str(fresh), *sources], capture_output=True, text=True)
        if done.returncode == 0:
            fresh.replace(HELPER)
            return HELPER
    raise SystemExit(f"temper: the sandbox helper does not compile:\n{done.stderr}")


if __name__ == "__main__":
    print(build())
