"""Sandboxes over loopback: the contract holds at the other end of a wire, which is proven, sealed and strict."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from temper.core.blame import FaultError
from temper.core.errors import ConfigError, MissingError, RefusedError
from temper.core.protocols import Snapshots
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import fake, link, local, remote
from temper.sandboxes.serve import serving

KEY = secrets.token_hex(32).encode()


@contextlib.asynccontextmanager
async def connected(
    backend: object, key: bytes = b"", folder: Path | None = None, certificate: str = ""
) -> AsyncIterator[remote.Backend]:
    """A client of a server in the same loop."""
    tls = link.tls_of(certificate, certificate)  # both in one file
    async with serving(backend, "127.0.0.1", 0, key, tls) as port:  # type: ignore[arg-type]
        client = await client_of(port, key, folder, certificate)
        try:
            yield client
        finally:
            await client.close()


async def client_of(port: int, key: bytes = b"", folder: Path | None = None, certificate: str = "") -> remote.Backend:
    path = ""
    if key:
        assert folder is not None
        (folder / "key").write_bytes(key + b"\n")
        (folder / "key").chmod(0o600)
        path = str(folder / "key")
    config = remote.Config(address=f"127.0.0.1:{port}", key_file=path, certificate=certificate)
    return await asyncio.to_thread(remote.create, config)  # it asks the server, which needs this loop


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_sandbox_is_as_if_it_were_here(tmp_path: Path) -> None:
    async def test() -> None:
        backend = local.create()
        try:
            async with connected(backend, KEY, tmp_path) as client:
                assert client.capabilities() == {**backend.capabilities(), "sessions": "none"}
                box = await client.open(SandboxSpec(files={"a/b": b"\0\xff"}))
                said = await box.exec(["sh", "-c", "cat; echo $X >&2; exit 3"], stdin=b"in", env={"X": "y"})
                assert (said.cause, said.code, said.stdout, said.stderr) == ("exited", 3, b"in", b"y\n")
                assert (await box.exec(["sleep", "9"], seconds=0.2)).cause == "deadline"
                assert await box.get("a/b") == b"\0\xff"
                with pytest.raises(FileNotFoundError):
                    await box.get("absent")
                with pytest.raises(PermissionError):
                    await box.put("../out", b"")
                with pytest.raises(RefusedError, match="moon"):
                    await client.open(SandboxSpec(require=("moon",)))
                with pytest.raises(ConfigError, match="expected host"):
                    await client.open(SandboxSpec(network=("a b",)))
                await box.close()
                await box.close()
                with pytest.raises(FaultError):
                    await box.exec(["true"])
        finally:
            await backend.close()

    run(test)


def test_snapshots_work_where_the_server_has_them() -> None:
    async def test() -> None:
        async with connected(fake.create()) as client:
            box = await client.open(SandboxSpec(files={"a": b"1"}))
            assert isinstance(box, Snapshots)
            state = await box.snapshot()
            await box.put("a", b"2")
            (twin,) = await box.fork(state, 1)
            await box.rollback(state)
            assert await box.get("a") == await twin.get("a") == b"1"
            assert await box.fork(state, 0) == []
            with pytest.raises(ValueError, match="no-such"):
                await box.rollback("no-such")

    run(test)


def test_what_a_client_opened_dies_with_its_connection() -> None:
    async def test() -> None:
        backend = fake.create()
        async with serving(backend, "127.0.0.1", 0, b"") as port:
            client = await client_of(port)
            for _ in range(3):
                await client.open(SandboxSpec())
            assert backend.open_now == 3
            await client.close()
            while backend.open_now:
                await asyncio.sleep(0.01)
            with pytest.raises(FaultError):
                await client.open(SandboxSpec())

    run(test)


def test_a_cancelled_command_is_killed_over_there() -> None:
    async def test() -> None:
        backend = local.create()
        try:
            async with connected(backend) as client:
                box = await client.open(SandboxSpec())
                running = asyncio.create_task(box.exec(["sleep", "50"], seconds=60))
                await asyncio.sleep(0.2)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                assert (await asyncio.wait_for(box.exec(["echo", "on"]), 5)).stdout == b"on\n"
        finally:
            await backend.close()

    run(test)


def test_a_server_that_errs_answers_all_the_same() -> None:
    def broken(files: dict[str, bytes], argv: Sequence[str], stdin: bytes) -> Exit:
        raise RuntimeError("a bug")

    async def test() -> None:
        async with connected(fake.create(fake.Config(commands=broken))) as client:
            box = await client.open(SandboxSpec(files={"a": b"1"}))
            with pytest.raises(FaultError, match="RuntimeError: a bug") as caught:
                await box.exec(["x"])
            assert caught.value.fault.what == "backend-lost"
            assert await box.get("a") == b"1"

    run(test)


def test_openings_that_are_cancelled_leave_nothing_over_there() -> None:
    async def test() -> None:
        backend = fake.create()
        async with connected(backend) as client:
            await (await client.open(SandboxSpec())).close()
            for steps in range(60):
                opening = asyncio.create_task(client.open(SandboxSpec()))
                for _ in range(steps):
                    await asyncio.sleep(0)
                opening.cancel()
                (box,) = await asyncio.gather(opening, return_exceptions=True)
                if isinstance(box, remote.Remote):
                    await box.close()
            async with asyncio.timeout(5):
                while backend.open_now:
                    await asyncio.sleep(0.01)

    run(test)


def test_a_server_that_goes_away_is_our_fault() -> None:
    async def test() -> None:
        async with serving(fake.create(), "127.0.0.1", 0, b"") as port:
            client = await client_of(port)
            box = await client.open(SandboxSpec())
        with pytest.raises(FaultError) as caught:
            await box.put("a", b"1")
        assert caught.value.fault.what == "backend-lost"
        await box.close()
        await client.close()

    run(test)


# ---- strangers ----


@pytest.mark.parametrize(
    ("server", "client"), [(KEY, b"x" * 40), (KEY, b""), (b"", KEY)], ids=["another", "none", "not asked for"]
)
def test_who_does_not_know_the_key_is_refused(server: bytes, client: bytes, tmp_path: Path) -> None:
    async def test() -> None:
        backend = fake.create()
        async with serving(backend, "127.0.0.1", 0, server) as port:
            with pytest.raises(RefusedError, match="key"):
                await client_of(port, client, tmp_path)
        assert backend.opened == 0

    run(test)


def test_beyond_loopback_a_key_and_a_certificate_are_needed_at_both_ends(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o600)

    async def test() -> None:
        for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
            for key, missing in ((b"", "a key and a certificate"), (KEY, "a certificate")):
                with pytest.raises(ConfigError, match=f"need {missing}"):
                    async with serving(fake.create(), host, 0, key):
                        pass
                with pytest.raises(ConfigError, match=f"need {missing}"):
                    remote.create(remote.Config(address=f"{host}:1", key_file=str(tmp_path / "key") if key else ""))

    run(test)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """Files with a certificate and its key: for this machine, another for it, and one for an address elsewhere."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH")
    made = []
    for number, address in enumerate(("127.0.0.1", "127.0.0.1", "192.0.2.1")):
        path = str(tmp_path_factory.mktemp("tls") / f"{number}.pem")
        argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        argv += ["-subj", "/CN=test", "-addext", f"subjectAltName=IP:{address}", "-keyout", path, "-out", f"{path}.crt"]
        subprocess.run(argv, check=True, capture_output=True)
        with Path(path).open("a") as file:
            file.write(Path(f"{path}.crt").read_text())
        made.append(path)
    return made[0], made[1], made[2]


def test_over_tls_it_works_and_nothing_of_it_can_be_read(certificates: tuple[str, str, str], tmp_path: Path) -> None:
    heard = bytearray()

    async def test() -> None:
        async with serving(fake.create(), "127.0.0.1", 0, KEY, link.tls_of(certificates[0], certificates[0])) as port:

            async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                inner, outer = await asyncio.open_connection("127.0.0.1", port)

                async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                    while data := await source.read(65536):
                        heard.extend(data)
                        target.write(data)
                    target.close()

                await asyncio.gather(copy(reader, outer), copy(inner, writer))

            tap = await asyncio.start_server(pass_on, "127.0.0.1", 0)
            client = await client_of(tap.sockets[0].getsockname()[1], KEY, tmp_path, certificates[0])
            box = await client.open(SandboxSpec())
            await box.put("a", b"a secret of many words")
            assert await box.get("a") == b"a secret of many words"
            await client.close()
            tap.close()
        assert len(heard) > 1000
        assert b"secret" not in heard

    run(test)


def test_a_server_that_cannot_show_the_right_certificate_is_refused(
    certificates: tuple[str, str, str], tmp_path: Path
) -> None:
    ours, other, elsewhere = certificates

    async def test() -> None:
        for served, trusted in ((other, ours), (elsewhere, elsewhere), ("", ours), (ours, "")):
            backend = fake.create()
            async with serving(backend, "127.0.0.1", 0, KEY, link.tls_of(served, served)) as port:
                with pytest.raises(RefusedError):
                    await client_of(port, KEY, tmp_path, trusted)
            assert backend.opened == 0

    run(test)


def test_a_certificate_is_one(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("nothing\n")
    for path in (tmp_path / "none", tmp_path / "absent"):
        for private in ("", str(path)):
            with pytest.raises(ConfigError, match="openssl req"):
                link.tls_of(str(path), private)


def test_a_key_is_long_and_there(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret\n")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(ConfigError, match="32"):
        remote.read_key(str(tmp_path / "short"))
    with pytest.raises(MissingError, match="openssl"):
        remote.read_key(str(tmp_path / "absent"))


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"mode 644.*chmod 600"):
        remote.read_key(str(tmp_path / "key"))


def test_where_it_cannot_listen_is_said(tmp_path: Path) -> None:
    async def listen(host: str, port: int) -> None:
        async with serving(fake.create(), host, port, b""):
            pass

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RefusedError, match="choose another --port"):
        asyncio.run(listen("127.0.0.1", taken.getsockname()[1]))
    with pytest.raises(ConfigError, match="got 99999"):
        asyncio.run(listen("127.0.0.1", 99999))
    with pytest.raises(ConfigError, match="got 99999"):
        remote.create(remote.Config(address="127.0.0.1:99999"))


def test_noise_is_hung_up_on() -> None:
    async def test() -> None:
        async with serving(fake.create(), "127.0.0.1", 0, b"") as port:
            for noise in (b"GET / HTTP/1.1\r\n\r\n" * 9, b"\0" * 999, secrets.token_bytes(4096)):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(noise)
                heard = await asyncio.wait_for(reader.read(4096), 5)
                assert len(heard) <= 64  # a challenge, and our proof for theirs
                while heard:
                    heard = await asyncio.wait_for(reader.read(4096), 15)
                writer.transport.abort()
            await (await client_of(port)).close()

    run(test)


@pytest.mark.parametrize("tampering", ["flip", "repeat", "drop", "swap"])
def test_a_meddler_is_noticed(tampering: str) -> None:
    """Frames that are changed, repeated, left out or swapped on the way end the connection, unread."""

    async def test() -> None:
        pair: list[link.Link] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pair.append(await link.greet(reader, writer, KEY, client=False))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        client = await link.greet(reader, writer, KEY, client=True)
        frames: list[bytes] = []
        real = writer.write
        writer.write = frames.append  # type: ignore[method-assign]
        for number in range(3):
            client.send(link.Call(number, "b", "close", link.NOTHING))
        first, second, third = frames
        changed = bytearray(first)
        changed[-1] ^= 1
        sent = {
            "flip": [bytes(changed)],
            "repeat": [first, first],
            "drop": [second],
            "swap": [first, third, second],
        }[tampering]
        real(b"".join(sent))
        unharmed = len([frame for frame in sent[:1] if frame == first])
        for _ in range(unharmed):
            await asyncio.wait_for(pair[0].receive(link.Call), 5)
        with pytest.raises(ConnectionError, match="seal"):
            await asyncio.wait_for(pair[0].receive(link.Call), 5)
        client.close()
        pair[0].close()
        server.close()

    run(test)


def test_a_call_out_of_form_ends_the_connection() -> None:
    async def test() -> None:
        async with serving(fake.create(), "127.0.0.1", 0, b"") as port:
            for method, given in (("__class__", []), ("exec", ["a"]), ("put", [1, 2]), ("open", [{"base": 3}])):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                proven = await link.greet(reader, writer, b"", client=True)
                await proven.receive(link.Answer)
                proven.send(link.Call(1, "b", method, msgspec.Raw(msgspec.msgpack.encode(given))))
                with pytest.raises(ConnectionError):
                    await asyncio.wait_for(proven.receive(link.Answer), 5)
                proven.close()

    run(test)


def test_the_verb_serves_another_process() -> None:
    argv = [sys.executable, "-m", "temper.cli", "sandbox", "serve", "--port", "0"]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = server.stdout.readline().rpartition(" ")[2].strip()

        async def test() -> None:
            client = remote.create(remote.Config(address=address))
            box = await client.open(SandboxSpec())
            assert (await box.exec(["id", "-u"])).stdout == b"1000\n"
            await client.close()

        run(test)
    finally:
        server.terminate()
        server.communicate()
