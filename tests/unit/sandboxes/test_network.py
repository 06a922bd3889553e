"""The proxy: what it lets through and what it refuses, from outside by its socket and from inside a sandbox.

The refused requests are of the kinds that RFC 9110 (section 7.2), RFC 9112 (sections 2.2, 5 and 6.3) and PortSwigger's
list of request smuggling warn of: they must not reach the host behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import random
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from temper.core.errors import ConfigError
from temper.core.task import SandboxSpec
from temper.sandboxes import local, network


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        body = f"{self.command} {self.path} {self.headers['Host']} {self.rfile.read(size).decode()}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.seen.append(body)  # type: ignore[attr-defined]

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    found.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def asked(allowed: Sequence[str], request: bytes) -> bytes:
    """What the proxy answers to these bytes."""

    async def run() -> bytes:
        listening = socket.create_server(("127.0.0.1", 0))
        proxy = network.Proxy(allowed)
        await proxy.serve(listening)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            writer.write(request)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()
            await proxy.close()

    return asyncio.run(run())


def test_a_listed_host_is_reached_and_named_as_it_was_checked(server: http.server.HTTPServer) -> None:
    at = f"127.0.0.1:{server.server_port}"
    body = b"Host: elsewhere\r\nContent-Length: 3\r\n\r\nabc"
    answer = asked([at], f"POST http://{at}/x?y=1 HTTP/1.1\r\n".encode() + body)
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(f"POST /x?y=1 {at} abc".encode())


def test_a_tunnel_carries_bytes_both_ways(server: http.server.HTTPServer) -> None:
    at = f"127.0.0.1:{server.server_port}"
    answer = asked([at], f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\nGET /in HTTP/1.0\r\nHost: h\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"GET /in h ")


REFUSED = {
    "not listed": (b"GET http://other.test:PORT/ HTTP/1.1\r\n\r\n", b"403"),
    "another port": (b"GET http://127.0.0.1:1/ HTTP/1.1\r\n\r\n", b"403"),
    "a name that means a private address": (b"GET http://localhost:PORT/ HTTP/1.1\r\n\r\n", b"403"),
    "the same by tunnel": (b"CONNECT localhost:PORT HTTP/1.1\r\n\r\n", b"403"),
    "an address by another spelling": (b"GET http://2130706433:PORT/ HTTP/1.1\r\n\r\n", b"403"),
    "an address mapped into IPv6": (b"CONNECT [::ffff:127.0.0.1]:PORT HTTP/1.1\r\n\r\n", b"403"),
    "a name before the host": (b"GET http://127.0.0.1:PORT@other.test/ HTTP/1.1\r\n\r\n", b"400"),
    "no absolute form": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", b"400"),
    "another scheme": (b"GET file:///etc/passwd HTTP/1.1\r\n\r\n", b"400"),
    "a bare line feed": (b"GET http://127.0.0.1:PORT/\nHost:\nX: HTTP/1.1\r\n\r\n", b"400"),
    "a folded line": (b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA: b\r\n c\r\n\r\n", b"400"),
    "two lengths": (
        b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"411",
    ),
    "chunks": (b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
    "chunks, spelt oddly": (b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nTransfer-encoding : x\r\n\r\n", b"411"),
    "a length with a sign": (b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: +1\r\n\r\na", b"411"),
    "a head without an end": (b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA: " + b"b" * 40000, b"400"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_reaches_nobody(what: str, server: http.server.HTTPServer) -> None:
    request, status = REFUSED[what]
    port = str(server.server_port)
    answer = asked([f"127.0.0.1:{port}", f"localhost:{port}"] if "name that" not in what and "same by" not in what
                   else [f"localhost:{port}"], request.replace(b"PORT", port.encode()))  # fmt: skip
    assert answer.split(b" ")[1] == status
    assert server.seen == []  # type: ignore[attr-defined]


def test_a_second_request_on_the_connection_is_not_passed_on(server: http.server.HTTPServer) -> None:
    at = f"127.0.0.1:{server.server_port}"
    one = f"GET http://{at}/1 HTTP/1.1\r\n\r\n"
    asked([at], (one + f"GET /2 HTTP/1.1\r\nHost: {at}\r\n\r\n").encode())
    assert [seen.split()[1] for seen in server.seen] == [b"/1"]  # type: ignore[attr-defined]


def test_addresses_that_are_not_public_are_refused_unless_listed() -> None:
    proxy = network.Proxy(["10.1.2.3", "[fd00::1]:8080"])
    # IANA's registries of special-purpose addresses; 169.254.169.254 and fd00:ec2::254 are clouds' metadata services
    private = ["10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"]
    private += ["224.0.0.1", "::1", "fe80::1", "fd00:ec2::254", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1"]
    assert [address for address in private if proxy._may(address, 80)] == []
    assert proxy._may("10.1.2.3", 443)
    assert proxy._may("::ffff:10.1.2.3", 80)
    assert proxy._may("fd00::1", 8080)
    assert not proxy._may("fd00::1", 80)
    assert proxy._may("1.1.1.1", 80)
    assert proxy._may("2606:4700::1111", 443)


@pytest.mark.parametrize("entry", ["", "a b", "http://x", "x:0", "x:70000", "x:y", "*.x", "[::1", "ü.test", "x/y"])
def test_an_entry_that_means_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="expected host or host:port"):
        network.parse([entry])


INSIDE = """
import http.client, os, socket, threading, urllib.request
at = os.environ["AT"]
client = http.client.HTTPConnection("127.0.0.1", 3128)
client.request("GET", f"http://{at}/plain"); print(client.getresponse().read())
client = http.client.HTTPConnection("127.0.0.1", 3128)
client.set_tunnel(at); client.request("GET", "/tunnel"); print(client.getresponse().read())
try: urllib.request.urlopen("http://other.test/")
except urllib.error.HTTPError as error: print(error.code, error.read())
try: socket.create_connection(tuple(at.split(":")), 1)
except OSError as error: print(type(error).__name__)
served = socket.create_server(("127.0.0.1", 0))
socket.create_connection(served.getsockname()).sendall(b"loopback"); print(served.accept()[0].recv(9))
"""


def test_a_sandbox_has_its_list_its_loopback_and_nothing_else(server: http.server.HTTPServer) -> None:
    at = f"127.0.0.1:{server.server_port}"

    async def run() -> list[bytes]:
        backend = local.create()
        try:
            open_to = await backend.open(SandboxSpec(network=(at,), env={"AT": at}))
            closed = await backend.open(SandboxSpec())
            found = await open_to.exec(["python3", "-c", INSIDE])
            refused = await closed.exec(
                ["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 3128))"]
            )
            assert b"ConnectionRefusedError" in refused.stderr
            assert found.stderr == b""
            await open_to.close()
            return found.stdout.splitlines()
        finally:
            await backend.close()

    lines = asyncio.run(run())
    assert lines[0] == f"b'GET /plain {at} '".encode()
    assert lines[1] == f"b'GET /tunnel {at} '".encode()
    assert lines[2].startswith(b"403 b\"temper: other.test is not on this sandbox's list")
    assert lines[3:] == [b"ConnectionRefusedError", b"b'loopback'"]


def test_a_sandbox_that_ends_takes_its_connections_along(server: http.server.HTTPServer) -> None:
    hanging = socket.create_server(("127.0.0.1", 0))

    async def run() -> bytes:
        backend = local.create()
        port = hanging.getsockname()[1]
        with contextlib.closing(hanging):
            box = await backend.open(SandboxSpec(network=(f"127.0.0.1:{port}",)))
            program = (
                "import socket; s = socket.create_connection(('127.0.0.1', 3128)); "
                f"s.sendall(b'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n'); s.recv(99); s.recv(99)"
            )
            running = asyncio.create_task(box.exec(["python3", "-c", program]))
            hanging.setblocking(False)
            there, _ = await asyncio.get_running_loop().sock_accept(hanging)
            with contextlib.closing(there):
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await box.close()
                there.setblocking(False)
                rest = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(there, 9), 5)
        await backend.close()
        return rest

    assert asyncio.run(run()) == b""


def test_openings_that_are_aborted_leave_no_descriptor() -> None:
    rng = random.Random(3)

    async def run() -> None:
        backend = local.create()
        spec = SandboxSpec(network=("example.org",))
        await (await backend.open(spec)).close()
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(40):
            opening = asyncio.create_task(backend.open(spec))
            await asyncio.sleep(rng.random() * 0.01)
            opening.cancel()
            (box,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(box, local.Local):
                await box.close()
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        await backend.close()

    asyncio.run(run())
