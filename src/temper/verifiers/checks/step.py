"""Runs inside a sandbox: reads `part.step` with build123d and writes it as the mesh `part.stl`. Nothing of the policy's
runs beside it. Fails when the file does not import, or holds anything but solids.
"""

from __future__ import annotations

import sys


def main() -> None:
    from build123d import export_stl, import_step

    part = import_step("part.step")
    if not part.solids() or len(part.faces()) != sum(len(solid.faces()) for solid in part.solids()):
        sys.exit("the file holds no solids, or loose faces beside them")
    if not export_stl(part, "part.stl", tolerance=0.02, angular_tolerance=0.1):
        sys.exit("the solids cannot be meshed")


if __name__ == "__main__":
    main()
