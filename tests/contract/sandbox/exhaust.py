"""Using up what others need: tasks, memory of every kind, disk, descriptors, kernel quotas, processor, output."""

# ruff: noqa: E501  (programs, one a row)
from __future__ import annotations

import asyncio

from msgspec import structs

from temper.core.trace import Exit

from . import PRELUDE, ROOMY, SMALL, Case, OpenError, SkipError, Stage, judge, python, shell

KILLED = ("oom", "signalled")
TIGHT = structs.replace(SMALL, memory=64 << 20)
SECOND = structs.replace(SMALL, cpu_seconds=1.0)


async def _output(stage: Stage) -> None:
    for program in (
        "while True: os.write(1, b'x' * 65536)",
        "while True: os.write(1, b'line\\n')",
        "while True: os.write(2, b'x' * 65536)",
        "while True: os.write(1, b'\\0\\xff\\xfe' * 999)",
        "for _ in range(1 << 14): os.write(1, b'x' * 65536)",
    ):
        found = await stage.py(program)
        if found.cause != "output" or len(found.stdout) > SMALL.output or len(found.stderr) > SMALL.output:
            raise OpenError(f"{program}: {found.cause}, {len(found.stdout)} and {len(found.stderr)} bytes kept")


async def _hoard(stage: Stage, take: str, probe: str) -> None:
    """Ten sandboxes take all they get of a kernel quota; the neighbour must still get its part."""
    boxes = await asyncio.gather(*(stage.backend.open(SMALL) for _ in range(10)))
    script = f"{take}\nprint('taken', flush=True); time.sleep(60)"
    tasks = [asyncio.create_task(box.exec(["python3", "-c", PRELUDE + script], seconds=6)) for box in boxes]
    try:
        await asyncio.sleep(2.0)
        found: Exit = await stage.neighbour.exec(["python3", "-c", PRELUDE + probe], seconds=10)
        if found.stdout != b"mine\n":
            raise OpenError(f"ten others left nothing: {found.text[-200:]}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for box in boxes:
            await box.close()


def hoard(name: str, take: str, probe: str) -> Case:
    async def attack(stage: Stage) -> None:
        if (await stage.run(["python3", "-c", PRELUDE + probe])).stdout != b"mine\n":
            raise SkipError("not offered inside")
        await _hoard(stage, take, probe)

    return Case(family="exhaust", name=name, attack=attack, limit="quotas")


async def _deep(stage: Stage) -> None:
    """A tree deeper than any path may be long is made, is no trouble to get from, and goes away with its sandbox."""
    judge(await stage.py("for _ in range(4000): os.mkdir('d'); os.chdir('d')\nprint('tried')"))
    try:
        await stage.box.get("/".join(["d"] * 3000))
    except OSError:
        return
    raise OpenError("a directory was read as a file")


CASES = [
    python("exhaust", "fork bomb", "while True: os.fork()", "pids", limit="pids"),
    python("exhaust", "thread bomb", "import threading\ntry:\n  while True: threading.Thread(target=time.sleep, "
           "args=(60,)).start()\nexcept RuntimeError: time.sleep(0.4); os._exit(1)", "pids", limit="pids"),
    python("exhaust", "anonymous memory", "x = [bytearray(1 << 20) for _ in range(4000)]", *KILLED, limit="memory"),
    python("exhaust", "memory of many processes", "for _ in range(12):\n  if not os.fork(): x = bytearray(60 << 20); "
           "time.sleep(9)\nos.wait(); os._exit(1)", *KILLED, limit="memory"),
    python("exhaust", "memfd", "for _ in range(800):\n  f = os.memfd_create('x')\n  for _ in range(3): os.write(f, bytes(1 << 20))\n"
           "print('OPEN 2.4 GiB in files of memory')", *KILLED, limit="memory"),
    python("exhaust", "SysV shared memory", "libc.shmat.restype = ctypes.c_void_p\nfor _ in range(40):\n"
           "  i = libc.shmget(0, 64 << 20, 0o1600)\n  if i < 0: sys.exit(3)\n  a = libc.shmat(i, None, 0)\n"
           "  ctypes.memset(a, 1, 64 << 20); libc.shmdt(ctypes.c_void_p(a))\nprint('OPEN 2.5 GiB')", *KILLED, "exited",
           limit="memory"),
    python("exhaust", "socket buffers", "kept = []\ntry:\n  while True:\n    a, b = socket.socketpair(); kept += [a, b]\n"
           "    a.setblocking(False)\n    try:\n      while True: a.send(bytes(1 << 16))\n    except BlockingIOError: pass\n"
           "except OSError: pass\nprint('OPEN', len(kept), 'sockets filled') if len(kept) > 900 else 0\nprint('tried')",
           *KILLED, "exited", limit="memory", spec=TIGHT),
    python("exhaust", "page cache", "total = 0\nfor top, _, names in os.walk('/usr'):\n  for name in names:\n"
           "    try:\n      with open(os.path.join(top, name), 'rb') as f: total += len(f.read(16 << 20))\n"
           "    except OSError: pass\n  if total > 96 << 20: break\n", spec=TIGHT, seconds=60),
    python("exhaust", "locked memory", "tries('mlock', lambda: libc.mlock(ctypes.create_string_buffer(16 << 20), "
           "16 << 20) == 0)"),
    python("exhaust", "every writable directory", "total = 0\nfor top in ('/sandbox', '/tmp', '/dev/shm', '/run', "
           "'/var/tmp', '/home', '/mnt', '/dev', '/'):\n  for n in range(9):\n    try:\n      with open(f'{top}/f{n}', 'wb', "
           "0) as f:\n        while total < 64 << 20: total += f.write(bytes(1 << 18))\n    except OSError: pass\n"
           "print('OPEN', total) if total > 9 << 20 else 0\nprint('tried')", "exited", "disk", "signalled", limit="disk"),
    shell("exhaust", "disk by bytes", "cat /dev/zero > a; cat /dev/zero > b; cat /dev/zero > /tmp/c; exit 1", "disk",
          limit="disk"),
    python("exhaust", "disk by inodes", "for i in range(99999): open(str(i), 'w')", "disk", limit="inodes"),
    shell("exhaust", "sparse file", "truncate -s 1T huge && echo OPEN 1T", limit="file_size"),
    shell("exhaust", "one big file", "exec head -c 5000000 /dev/zero > big", "disk", limit="file_size"),
    python("exhaust", "zip bomb", "import zlib\nbomb = zlib.compress(bytes(64 << 20), 9)\nd = zlib.decompress\n"
           "with open('out', 'wb') as f:\n  while True: f.write(d(bomb))", "disk", "oom", "exited", limit="disk"),
    python("exhaust", "descriptors", "import resource\nn = []\ntries('open', lambda: [n.append(os.dup(1)) for _ in range(5000)] and "
           "len(n))\ntries('raise the limit', lambda: resource.setrlimit(7, (9999, 9999)) is None)"),
    python("exhaust", "pending signals", "signal.pthread_sigmask(signal.SIG_BLOCK, {40})\nn = 0\n"
           "while n < 9999 and libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) == 0: n += 1\n"
           "tries('queued', lambda: n > 5000 and n)"),
    python("exhaust", "pipe buffers", "import fcntl\ntotal = 0\nfor _ in range(400):\n  r, w = os.pipe()\n"
           "  try: total += fcntl.fcntl(w, 1031, 1 << 20)\n  except OSError: break\n"
           "tries('bytes', lambda: total > 128 << 20 and total)"),
    hoard("inotify", "while libc.inotify_init1(0) >= 0: pass", "print('mine' if libc.inotify_init1(0) >= 0 else 'none')"),
    hoard("pipe pages", "try:\n  while True: os.pipe()\nexcept OSError: pass\nfor _ in range(3):\n  if not os.fork():\n"
          "    try:\n      while True: os.pipe()\n    except OSError: time.sleep(60)",
          "import fcntl\nprint('mine' if fcntl.fcntl(os.pipe()[0], 1032) >= 65536 else 'small')"),
    hoard("message queues", "rt = ctypes.CDLL('librt.so.1')\nn = 0\nwhile rt.mq_open(b'/q%d' % n, 0o102, 0o600, None) >= 0:"
          " n += 1", "print('mine' if ctypes.CDLL('librt.so.1').mq_open(b'/q', 0o102, 0o600, None) >= 0 else 'none')"),
    hoard("queued signals", "signal.pthread_sigmask(signal.SIG_BLOCK, {40})\n"
          "while libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) == 0: pass",
          "signal.pthread_sigmask(signal.SIG_BLOCK, {40})\n"
          "print('mine' if libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) == 0 else 'none')"),
    python("exhaust", "processor", "for _ in range(3): os.fork()\nwhile True: pass", "deadline", spec=SECOND,
           limit="cpu_seconds"),
    python("exhaust", "processor in short lives", "while True:\n  if not os.fork():\n    e = time.time() + 0.3\n"
           "    while time.time() < e: pass\n    os._exit(0)\n  os.wait()", "deadline", spec=SECOND, seconds=6,
           limit="cpu_seconds"),
    python("exhaust", "niceness", "tries('nice', lambda: os.nice(-1))\ntries('fifo', lambda: os.sched_setscheduler(0, 1, "
           "os.sched_param(1)) is None)\ntries('ioprio', lambda: libc.syscall(251, 1, 0, 1 << 13) == 0)"),
    Case(family="exhaust", name="deep directories", attack=_deep, spec=ROOMY),
    Case(family="exhaust", name="endless output", attack=_output, limit="output"),
]  # fmt: skip
