"""Looking at what is none of one's business: the host's processes, secrets, paths, kernel, other tasks' files."""

# ruff: noqa: E501  (programs, one a row)
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from . import PRELUDE, SMALL, Case, OpenError, Stage, judge, python

SCAN = """
import stat
secret = 'SECRET'[::-1].encode()
def search(top):
    for folder, names, files in os.walk(top):
        if folder.startswith(sys.base_prefix): names.clear()
        for name in files:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    with open(path, 'rb') as f:
                        if secret in f.read(1 << 20): print('OPEN', path)
            except OSError: pass
for top in ('/sandbox', '/tmp', '/var', '/run', '/dev', '/home', '/root', '/etc', '/mnt', '/opt', '/srv', '/media', '/sys'):
    search(top)
for pid in os.listdir('/proc'):
    for name in ('environ', 'cmdline', 'maps', 'mountinfo', 'cgroup', 'comm', 'mem', 'root/canary'):
        try:
            with open(f'/proc/{pid}/{name}', 'rb') as f:
                if secret in f.read(1 << 20): print('OPEN', pid, name)
        except (OSError, ValueError): pass
print('tried')
"""


def scan(secret: str) -> str:
    """A search for `secret` whose own text does not hold it."""
    return SCAN.replace("SECRET", secret[::-1])


async def _secrets(stage: Stage) -> None:
    """The secret is in the owner's environment, in a host process, in the canary, and in the neighbour's file."""
    os.environ["TEMPER_CANARY"] = stage.secret
    outside = subprocess.Popen(["sleep", "60"], env={**os.environ})
    try:
        judge(await stage.py(scan(stage.secret), seconds=60))
        judge(await stage.py(f"tries('canary', lambda: open({str(stage.canary)!r}).read())\nprint('tried')"))
        await stage.sh(f"mkdir -p {stage.folder}; echo x > {stage.canary}")  # the onlooker looks at it
    finally:
        outside.kill()
        outside.wait()
        del os.environ["TEMPER_CANARY"]


async def _residue(stage: Stage) -> None:
    """What an earlier sandbox left on its disk is not there for a later one."""
    for _ in range(3):
        other = await stage.backend.open(SMALL)
        await other.put("left", stage.secret.encode() * 99)
        await other.exec(["sh", "-c", "cp left /tmp; cp left /dev/shm; cp left /var/tmp"])
        await other.close()
    later = await stage.backend.open(SMALL)
    try:
        judge(await later.exec(["python3", "-c", PRELUDE + scan(stage.secret)], seconds=60))
    finally:
        await later.close()


async def _host_processes(stage: Stage) -> None:
    outside = subprocess.Popen(["sleep", "77.125"])
    try:
        found = await stage.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -d /proc/[0-9]* | wc -l")
        if b"77.125" in found.stdout:
            raise OpenError("a process of the host is seen")
        if int(found.stdout.split()[-1]) > 8:
            raise OpenError(f"{found.stdout.split()[-1].decode()} processes are seen")
        await stage.sh("kill -9 -1; kill -9 1; kill -9 0", seconds=5)
        if outside.poll() is not None:
            raise OpenError("a process of the host was killed")
    finally:
        outside.kill()
        outside.wait()


async def _host_paths(stage: Stage) -> None:
    """Mounts tell where the host keeps things: its temporary files, its homes, the directory that we run in."""
    found = await stage.sh("cat /proc/self/mountinfo /proc/self/cgroup")
    shown = {str(stage.folder), str(Path.home()), str(Path.cwd())} - {"/", "/tmp"}
    told = [path for path in shown if path.encode() in found.stdout]
    if told and not all(_is_above_python(path) for path in told):
        raise OpenError(f"mountinfo names {', '.join(told)}")


def _is_above_python(path: str) -> bool:
    """The Python that sandboxes are shown, at its own place, is no secret."""
    return Path(path) in Path(sys.base_prefix).parents


CASES = [
    Case(family="look", name="secrets of host and neighbour", attack=_secrets),
    Case(family="look", name="residue of earlier sandboxes", attack=_residue),
    Case(family="look", name="host processes", attack=_host_processes),
    Case(family="look", name="host paths", attack=_host_paths),
    python("look", "environment", "known = {'PATH', 'HOME', 'USER', 'LANG', 'TMPDIR', 'PWD', 'PYTHONDONTWRITEBYTECODE', "
           "'LC_CTYPE', 'SHLVL', '_', 'OLDPWD', 'HOSTNAME', 'container', 'TERM', 'LOGNAME', 'SHELL'}\n"
           "tries('names', lambda: set(os.environ) - known or None)"),
    python("look", "kernel memory", "def read(path):\n  with open(path, 'rb') as f: return len(f.read(64)) > 0 and path\n"
           "for p in ('/proc/kcore', '/proc/kmsg', '/dev/mem', '/dev/kmem', '/dev/port', '/proc/kpagecount', '/proc/keys', "
           "'/proc/key-users', '/proc/timer_list', '/proc/slabinfo', '/proc/vmallocinfo', '/proc/interrupts', "
           "'/proc/sched_debug', '/proc/cmdline', '/sys/kernel/notes', '/sys/kernel/btf/vmlinux', '/proc/1/stack', "
           "'/sys/firmware/dmi/tables/DMI', '/sys/kernel/debug/sched/debug', '/sys/class/dmi/id/product_uuid'):\n"
           "  tries(p, lambda: read(p))"),
    python("look", "kernel addresses", "tries('iomem', lambda: any(l.split('-')[0].strip(' 0') for l in open('/proc/iomem')))\ntries('kallsyms', lambda: any(l.split()[0].strip('0') for l in "
           "open('/proc/kallsyms')))\ntries('modules', lambda: any(not l.split()[-1].endswith('0000') for l in "
           "open('/proc/modules') if '0x' in l))\ntries('wchan', lambda: '0x' in open('/proc/self/wchan').read())"),
    python("look", "kernel log", "b = ctypes.create_string_buffer(4096)\ntries('syslog', lambda: libc.klogctl(3, b, 4096) > 0)"),
    python("look", "the host's /sys", "tries('/sys', lambda: [n for n in os.listdir('/sys') if n not in ('fs',)] or None)"),
]  # fmt: skip
