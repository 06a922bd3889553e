"""Reaching what is outside: the host's loopback and sockets, other sandboxes, any network, descriptors of ours."""

# ruff: noqa: E501  (programs, one a row)
from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

from msgspec import structs

from temper.core.errors import RefusedError

from . import PRELUDE, SMALL, Case, OpenError, SkipError, Stage, judge, python

CONNECT = """
def connect(family, address, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind); s.settimeout(1); s.connect(address); s.send(b'x'); return True
"""


def offer(family: int, address: object) -> socket.socket:
    """A server of the host. It only counts who comes."""
    server = socket.socket(family, socket.SOCK_STREAM)
    server.bind(address)
    server.listen()
    server.setblocking(False)
    return server


async def _host_sockets(stage: Stage) -> None:
    path = str(stage.folder / "door")
    with contextlib.ExitStack() as kept:
        servers = [offer(socket.AF_INET, ("127.0.0.1", 0)), offer(socket.AF_INET, ("0.0.0.0", 0))]
        servers += [offer(socket.AF_UNIX, f"\0{stage.secret[:8]}"), offer(socket.AF_UNIX, path)]
        with contextlib.suppress(OSError):
            servers.append(offer(socket.AF_INET6, ("::1", 0)))
        for server in servers:
            kept.enter_context(server)
        Path(path).chmod(0o777)
        mine = socket.gethostbyname_ex(socket.gethostname())[2] if socket.gethostname() else []
        tcp = [(s.family, s.getsockname()[1]) for s in servers if s.family != socket.AF_UNIX]
        program = CONNECT + (
            f"for family, port in {[(int(f), p) for f, p in tcp]!r}:\n"
            f"  for host in ['127.0.0.1', '::1', '10.0.2.2', '172.17.0.1', *{mine!r}]:\n"
            "    tries(f'host {host}', lambda: connect(family, (host, port)))\n"
            f"tries('abstract socket', lambda: connect(socket.AF_UNIX, '\\0{stage.secret[:8]}'))\n"
            f"tries('socket file', lambda: connect(socket.AF_UNIX, {path!r}))\nprint('tried')\n"
        )
        found = await stage.py(program, seconds=40)
        for server in servers:
            with contextlib.suppress(BlockingIOError):
                server.accept()[0].close()
                raise OpenError(f"somebody came to {server.getsockname()}")
        judge(found)


async def _neighbours_sockets(stage: Stage) -> None:
    serve = (
        "a = socket.socket(socket.AF_UNIX); a.bind('\\0shared'); a.listen()\n"
        "b = socket.create_server(('127.0.0.1', 4567))\nf = socket.socket(socket.AF_UNIX); f.bind('/tmp/shared'); f.listen()\n"
        "time.sleep(20)"
    )
    other = await stage.backend.open(SMALL)
    serving = asyncio.create_task(other.exec(["python3", "-c", PRELUDE + serve], seconds=30))
    try:
        await asyncio.sleep(0.7)
        judge(await stage.py(CONNECT + "tries('abstract', lambda: connect(socket.AF_UNIX, '\\0shared'))\n"
              "tries('tcp', lambda: connect(socket.AF_INET, ('127.0.0.1', 4567)))\n"
              "tries('file', lambda: connect(socket.AF_UNIX, '/tmp/shared'))\nprint('tried')"))  # fmt: skip
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await other.close()


ASK = """
from urllib.parse import urlsplit
proxy = urlsplit(os.environ['HTTP_PROXY'])
def ask(text):
    s = socket.create_connection((proxy.hostname, proxy.port), 5); s.settimeout(5); s.sendall(text.encode())
    said = s.recv(999)
    if b' 200' in said[:16] and text.startswith('CONNECT'):
        s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); said = s.recv(999)
    return b'inside' in said
def get(host, path='/'): return ask(f'GET http://{host}{path} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n')
def tunnel(host): return ask(f'CONNECT {host} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n')
"""


async def _past_the_list(stage: Stage) -> None:
    """With one address allowed, its neighbours on the host are reached by no spelling; the allowed one is."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\r\n\r\ninside")
        writer.close()

    allowed, other = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
    may, may_not = (server.sockets[0].getsockname()[1] for server in (allowed, other))
    hosts = [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ]
    hosts += ["127.0.0.1.nip.io", f"127.0.0.1:{may}@127.0.0.1", f"127.0.0.1:{may}#@127.0.0.1", f"127.0.0.1%00.{may}"]
    try:
        box = await stage.backend.open(structs.replace(SMALL, network=(f"127.0.0.1:{may}",)))
    except RefusedError as error:
        raise SkipError("not offered: a network") from error
    try:
        program = (
            f"if not (get('127.0.0.1:{may}') and tunnel('127.0.0.1:{may}')): print('OPEN nothing is reached at all')\n"
            f"for h in {hosts!r}:\n  for act in (get, tunnel): tries(f'{{act.__name__}} {{h}}', lambda: act(f'{{h}}:{may_not}'))\n"
            f"tries('Host', lambda: ask('GET http://127.0.0.1:{may_not}/ HTTP/1.1\\r\\nHost: 127.0.0.1:{may}\\r\\n\\r\\n'))\n"
            "for h in ('169.254.169.254', 'example.com', '10.0.0.1'): tries(h, lambda: get(h) or tunnel(h + ':443'))\nprint('tried')"
        )
        judge(await box.exec(["python3", "-c", PRELUDE + ASK + program], seconds=60))
    finally:
        await box.close()
        allowed.close()
        other.close()


CASES = [
    Case(family="reach", name="past the list of allowed hosts", attack=_past_the_list, limit="network"),
    Case(family="reach", name="host sockets", attack=_host_sockets, limit="network"),
    Case(family="reach", name="neighbours' sockets", attack=_neighbours_sockets, limit="network"),
    python("reach", "the network", CONNECT + "for a in ('169.254.169.254', '100.100.100.200', '1.1.1.1', '8.8.8.8', "
           "'192.168.0.1', '10.0.0.1'):\n  for port in (80, 53, 443): tries(f'{a}:{port}', lambda: connect(2, (a, port)))\n"
           "for a in ('fe80::1%lo', '2606:4700:4700::1111', 'fd00:ec2::254'): tries(a, lambda: connect(10, (a, 80)))",
           limit="network", seconds=60),
    python("reach", "DNS", CONNECT + "for n in ('example.com', 'metadata.google.internal'):\n"
           "  tries(n, lambda: socket.getaddrinfo(n, 80) and True)\n"
           "for a in ('127.0.0.53', '8.8.8.8', '1.1.1.1'): tries(f'tunnel by {a}', lambda: "
           "a[0] != '1' and connect(2, (a, 53), socket.SOCK_DGRAM))", limit="network", seconds=60),
    python("reach", "interfaces", "tries('interfaces', lambda: set(n for _, n in socket.if_nameindex()) - {'lo'} or None)\n"
           "tries('routes', lambda: len(open('/proc/net/route').readlines()) > 1)", limit="network"),
    python("reach", "inherited descriptors", "for f in os.listdir('/proc/self/fd'):\n"
           "  tries(f'descriptor {f}', lambda: int(f) > 3 and os.readlink(f'/proc/self/fd/{f}'))\n"
           "for f in range(3): tries('a socket', lambda: os.readlink(f'/proc/self/fd/{f}').startswith('socket:'))"),
]  # fmt: skip
