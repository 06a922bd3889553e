"""Honest programs must work as on any machine: tests, packages, version control, compilers, databases, servers."""

# ruff: noqa: E501  (programs, one a row)
from __future__ import annotations

import importlib.util
from pathlib import Path

from . import ROOMY, Case, OpenError, SkipError, Stage, works

PYTEST = ("_pytest", "pytest", "pluggy", "iniconfig", "packaging", "pygments")


async def _pytest(stage: Stage) -> None:
    """The host's own pytest, carried in as files: one test that passes, one that fails, fixtures, capture."""
    files: dict[str, bytes] = {}
    for name in PYTEST:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise SkipError("no pytest on the host")
        top = Path(spec.submodule_search_locations[0])
        for path in top.rglob("*.py"):
            if "lexers" not in path.parts or path.stem in ("__init__", "_mapping", "diff", "python"):
                files[f"lib/{name}/{path.relative_to(top)}"] = path.read_bytes()
        files[f"lib/{name}/py.typed"] = b""
    if (shim := importlib.util.find_spec("py")) is not None and shim.origin is not None:
        files["lib/py.py"] = Path(shim.origin).read_bytes()
    files["test_it.py"] = (
        b"import subprocess, sys\ndef test_good(tmp_path, capsys):\n    (tmp_path / 'a').write_text('x'); print('said')\n"
        b"    assert capsys.readouterr().out == 'said\\n'\n    assert subprocess.run([sys.executable, '-c', '']).returncode == 0\n"
        b"def test_bad(): assert 1 == 2\n"
    )
    for path, content in files.items():
        await stage.box.put(path, content)
    await stage.need("python3", "-c", "import sys; assert sys.version_info >= (3, 9)")
    found = await stage.run(["python3", "-m", "pytest", "-q", "test_it.py"], env={"PYTHONPATH": "lib"}, seconds=60)
    if found.code != 1 or b"1 failed, 1 passed" not in found.stdout:
        raise OpenError(f"{found.cause} {found.code}: {found.text[-500:]}")


CASES = [
    Case(family="fidelity", name="pytest", attack=_pytest, spec=ROOMY),
    works("pip", "mkdir -p p/m; echo 'x = 7' > p/m/__init__.py; cat > p/pyproject.toml <<'E'\n[build-system]\n"
          "requires = []\nbuild-backend = \"b\"\nbackend-path = [\".\"]\nE\ncat > p/b.py <<'E'\nimport zipfile\n"
          "def build_wheel(d, *a):\n    with zipfile.ZipFile(d + '/m-1-py3-none-any.whl', 'w') as z:\n"
          "        z.writestr('m/__init__.py', 'x = 7'); z.writestr('m-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: m\\nVersion: 1\\n')\n"
          "        z.writestr('m-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: b\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
          "        z.writestr('m-1.dist-info/RECORD', '')\n    return 'm-1-py3-none-any.whl'\nE\n"
          "python3 -m pip install -q --no-build-isolation --no-index --no-cache-dir --target t ./p >/dev/null 2>&1; PYTHONPATH=t python3 -c 'import m; print(m.x)'",
          "7\n", needs="python3 -m pip --version"),
    works("virtual environment", "python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix)'",
          "/sandbox/v\n", needs="python3 -c 'import venv'"),
    works("npm", "echo '{\"name\": \"a\", \"version\": \"1.0.0\", \"scripts\": {\"go\": \"node -p 6*7\"}}' > package.json; npm run -s go",
          "42\n", needs="npm --version"),
    works("git", "git init -q r && cd r && git config user.email a@b && git config user.name a && echo 1 > f && git add f && "
          "git commit -qm one && git checkout -qb two && echo 2 > f && git commit -qam two && git checkout -q - && git merge -q two "
          ">/dev/null && cat f && git log --oneline | wc -l", "2\n2\n", needs="git --version"),
    works("gcc", "printf '#include <stdio.h>\\n#include <pthread.h>\\nvoid *f(void *p){puts(\"thread\");return p;}\\nint main(){pthread_t t;"
          "pthread_create(&t,0,f,0);pthread_join(t,0);return 0;}' > m.c && gcc -O2 -pthread -o m m.c && ./m", "thread\n",
          needs="gcc --version"),
    works("make", "printf 'all: a b\\n\\tcat a b\\n%%:\\n\\techo $@ > $@\\n' > Makefile; make -s -j4", "a\nb\n", needs="make --version"),
    works("sqlite WAL", "python3 - <<'E'\nimport sqlite3, threading\nd = sqlite3.connect('x.db')\n"
          "print(d.execute('pragma journal_mode=wal').fetchone()[0])\nd.execute('create table t(a)'); d.commit()\n"
          "def add():\n    c = sqlite3.connect('x.db', timeout=20)\n    for i in range(50):\n        c.execute('insert into t values(1)'); c.commit()\n"
          "ts = [threading.Thread(target=add) for _ in range(4)]\n[t.start() for t in ts]; [t.join() for t in ts]\n"
          "print(d.execute('select count(*) from t').fetchone()[0])\nE", "wal\n200\n", needs="python3 -c 'import sqlite3'"),
    works("multiprocessing", "cat > m.py <<'E'\nimport multiprocessing as m\nif __name__ == '__main__':\n"
          "    for how in ('fork', 'spawn', 'forkserver'):\n        with m.get_context(how).Pool(2) as p: print(p.map(abs, [-1, -2]))\n"
          "    from multiprocessing import shared_memory\n    s = shared_memory.SharedMemory(create=True, size=4096); s.buf[0] = 9\n"
          "    print(s.buf[0]); s.close(); s.unlink()\nE\npython3 m.py", "[1, 2]\n" * 3 + "9\n", needs="python3 --version"),
    works("threads", "python3 -c 'import concurrent.futures as c\nwith c.ThreadPoolExecutor(16) as p: print(sum(p.map(abs, range(-999, 0))))'",
          "499500\n", needs="python3 --version"),
    works("asyncio", "python3 -c 'import asyncio\nasync def f():\n  p = await asyncio.create_subprocess_exec(\"echo\", \"hi\", stdout=-1)\n"
          "  return (await p.communicate())[0]\nprint(asyncio.run(f()))'", "b'hi\\n'\n", needs="python3 --version"),
    works("local server", "mkdir s; echo served > s/f; python3 -m http.server -d s -b 127.0.0.1 8765 >/dev/null 2>&1 & "
          "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2; python3 -c 'import urllib.request as u; print(u.urlopen(\"http://localhost:8765/f\")"
          ".read().decode(), end=\"\")' 2>/dev/null && break; done", "served\n", needs="python3 --version"),
    works("pseudo-terminal", "python3 -c 'import pty, os\nr = []\ndef read(f):\n  d = os.read(f, 99); r.append(d); return b\"\"\n"
          "pty.spawn([\"sh\", \"-c\", \"test -t 0 && test -t 1 && tty\"], read)\nprint(b\"\".join(r).strip().startswith(b\"/dev/pts/\"))'",
          "True\n", needs="python3 --version"),
    works("tmux", "export TERM=xterm; tmux -f /dev/null new-session -d -s a 'echo in tmux > out; sleep 9' && sleep 1 && cat out && tmux kill-server",
          "in tmux\n", needs="tmux -V"),
    works("shell", "set -e; mkfifo p; (echo through > p &); cat p; x=$(printf %s ab | tr a-z A-Z); echo $x; trap 'echo trapped' USR1; "
          "kill -USR1 $$; (exit 3) || echo $?; seq 3 | xargs -n1 -P3 echo | sort | tr -d '\\n'; echo; ln a b 2>/dev/null || echo none",
          "through\nAB\ntrapped\n3\n123\nnone\n"),
    works("files", "python3 - <<'E'\nimport fcntl, mmap, os, tempfile, socket\nwith open('f', 'wb+') as f:\n    f.write(bytes(8192)); f.flush()\n"
          "    m = mmap.mmap(f.fileno(), 0); m[:2] = b'ok'; m.flush(); fcntl.flock(f, fcntl.LOCK_EX)\n    os.posix_fallocate(f.fileno(), 0, 9000)\n"
          "print(open('f', 'rb').read(2)); os.link('f', 'g'); os.symlink('f', 'h'); os.rename('g', 'i'); os.chmod('i', 0o600)\n"
          "os.utime('i', (1, 1)); print(int(os.stat('h').st_mtime)); a, b = socket.socketpair(); fd = os.open('f', 0)\n"
          "socket.send_fds(a, [b'x'], [fd]); print(len(socket.recv_fds(b, 9, 1)[1])); print(os.statvfs('.').f_bavail > 0)\n"
          "with tempfile.TemporaryDirectory() as d: print(d.startswith('/tmp'))\nE", "b'ok'\n1\n1\nTrue\nTrue\n", needs="python3 --version"),
    works("devices and /proc", "head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; echo x > /dev/null; echo y | cat /dev/stdin; "
          "echo z >/dev/fd/1; test \"$(nproc)\" -ge 1 && grep -c MemTotal /proc/meminfo; test -r /proc/self/status && echo self; whoami",
          "4\n4\ny\nz\n1\nself\nuser\n"),
    works("time and locale", "TZ=UTC date -d @0 +%Y; python3 -c 'import locale, sys; print(sys.getfilesystemencoding()); print(\"\\u00e9\")'",
          "1970\nutf-8\né\n", needs="python3 --version"),
]  # fmt: skip
