"""Runs inside a sandbox, by `python3 -I -S`: the files of the working directory as one JSON object. Standard library.

{path: {"kind": "file" | "dir" | "link" | "other", "mode": "755", "text": ... or "base64": ..., "to": target}}. Links
are not followed. More than `_MOST` bytes of content end it with an error, so that no answer is taken for a whole one.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys

_MOST = 2 << 20


def main() -> None:
    found: dict[str, dict[str, str]] = {}
    left = _MOST
    for folder, names, files in os.walk("."):
        for name in sorted(names + files):
            path = os.path.join(folder, name)  # noqa: PTH118
            entry, size = described(path, left)
            left -= size
            found[os.path.relpath(path)] = entry
    sys.stdout.write(json.dumps(found))


def described(path: str, most: int) -> tuple[dict[str, str], int]:
    status = os.lstat(path)
    entry = {"kind": "other", "mode": f"{stat.S_IMODE(status.st_mode):o}"}
    if stat.S_ISLNK(status.st_mode):
        return entry | {"kind": "link", "to": os.readlink(path)}, 0  # noqa: PTH115
    if stat.S_ISDIR(status.st_mode):
        return entry | {"kind": "dir"}, 0
    if not stat.S_ISREG(status.st_mode):
        return entry, 0
    if status.st_size > most:
        sys.exit(f"more than {_MOST} bytes of files")
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            content = file.read(most + 1)
    except PermissionError:
        return entry | {"kind": "file", "unreadable": "yes"}, 0
    try:
        return entry | {"kind": "file", "text": content.decode()}, len(content)
    except UnicodeDecodeError:
        return entry | {"kind": "file", "base64": base64.b64encode(content).decode()}, len(content)


if __name__ == "__main__":
    main()
