"""`temper sandbox`: a sandbox by hand, and the images that sandboxes start from."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import signal
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temper.cli import app
from temper.core import registry
from temper.core.errors import ConfigError, MissingError, RefusedError, nearest
from temper.core.task import SandboxSpec

if TYPE_CHECKING:
    from temper.core.protocols import SandboxBackend
    from temper.core.trace import Exit

group = typer.Typer(
    help="Run commands in a sandbox as a task would; build what sandboxes start from.", no_args_is_help=True
)
app.add_typer(group, name="sandbox")

Image = Annotated[str, typer.Option(help="What to start from: a spec file, or an image's hash or the beginning of it.")]
Network = Annotated[list[str] | None, typer.Option(help="A host, or host:port, that may be reached; can be repeated.")]
Backend = Annotated[str, typer.Option(help="Which sandbox: see `temper list sandboxes`.")]


@group.command(
    "build", epilog="Examples:\n\n  temper sandbox build env.toml\n\n  temper sandbox exec --image env.toml -- pytest"
)
def build(
    spec: Annotated[Path, typer.Argument(help="The environment: a TOML file, see docs/sandboxes.md.")],
) -> None:
    """Build an image from an environment's description, and write its lock file beside it."""
    from temper.sandboxes.images.build import build_file
    from temper.sandboxes.images.store import Store

    image = asyncio.run(build_file(spec, Store(), lambda text: typer.secho(text, err=True, dim=True)))
    typer.echo(f"image:{image.hash}")


@group.command("ls", epilog="Example:\n\n  temper sandbox ls")
def listing() -> None:
    """List the images of this machine, the last used first."""
    from temper.sandboxes.images.store import Store, size

    store = Store()
    for kept in store.images():
        megabytes = sum(size(store.layers / key) for key in kept.image.layers) / 1e6
        places = ", ".join(map(str, kept.roots)) or "no lock file names it"
        days = (time.time() - kept.used) / 86400
        typer.echo(f"{kept.path.stem}  {megabytes:8.1f} MB  used {days:.1f} days ago  {places}")


@group.command("gc", epilog="Examples:\n\n  temper sandbox gc --dry-run\n\n  temper sandbox gc --days 3")
def collect(
    days: Annotated[float, typer.Option(help="Keep what was made or used in so many days.")] = 14.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and keep it.")] = False,
) -> None:
    """Remove images, layers and downloads that no lock file names, nobody uses, and nobody has used lately."""
    from temper.sandboxes.images.store import Store

    store = Store()
    for path in asyncio.run(store.gc(days, dry_run)):
        typer.echo(path.relative_to(store.root))


@group.command("shell", epilog="Example:\n\n  temper sandbox shell --image env.toml --network pypi.org")
def shell(image: Image = "", network: Network = None, backend: Backend = "local") -> None:
    """Open a shell in a sandbox, as a task's commands would find it; what it wrote is gone at the end."""
    spec = SandboxSpec(base=_base(image), network=tuple(network) if network else "none")
    raise typer.Exit(asyncio.run(_shell(backend, spec)))


@group.command("exec", epilog="Example:\n\n  temper sandbox exec --file test.py -- python3 test.py")
def execute(
    argv: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    file: Annotated[list[Path] | None, typer.Option(help="A file to put into the working directory.")] = None,
    seconds: Annotated[float, typer.Option(help="Limit of wall-clock time.")] = 10.0,
    image: Image = "",
    network: Network = None,
    backend: Backend = "local",
) -> None:
    """Run one command, print its streams and how it ended; exit status is the command's, or 1 when it was ended."""
    if not 0 < seconds < math.inf:
        raise ConfigError(f"expected --seconds above 0, got {seconds:g}")
    files = {f.name: f.read_bytes() for f in file or ()}
    spec = SandboxSpec(files=files, base=_base(image), network=tuple(network) if network else "none")
    found = asyncio.run(_execute(backend, spec, argv, seconds))
    sys.stdout.buffer.write(found.stdout)
    sys.stderr.buffer.write(found.stderr)
    typer.secho(f"{found.cause} {found.code} after {found.seconds:.3f} s {found.evidence}", err=True, dim=True)
    raise typer.Exit(found.code if found.cause == "exited" else 1)


@group.command(
    "serve",
    epilog="Examples:\n\n  temper sandbox serve\n\n"
    "  temper sandbox serve --host 10.0.0.5 --key-file key --certificate tls.crt --certificate-key tls.key",
)
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback a key and a certificate are needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 7411,
    key_file: Annotated[str, typer.Option(help="File with the shared key, 32 characters or more.")] = "",
    certificate: Annotated[str, typer.Option(help="File with the certificate for TLS (PEM).")] = "",
    certificate_key: Annotated[str, typer.Option(help="File with the certificate's private key.")] = "",
    backend: Annotated[str, typer.Option(help="Which sandbox: see `temper list sandboxes`.")] = "local",
) -> None:
    """Offer this machine's sandboxes to others, who name it as `sandboxes.kind = "remote"`; until interrupted."""
    from temper.sandboxes import link, remote

    if bool(certificate) != bool(certificate_key):
        raise ConfigError("expected --certificate and --certificate-key together, got one of them")
    tls = link.tls_of(certificate, certificate_key)
    asyncio.run(_serve(backend, host, port, remote.read_key(key_file), tls))


async def _serve(backend: str, host: str, port: int, key: bytes, tls: ssl.SSLContext | None) -> None:
    from temper.sandboxes.serve import serving

    async with _created(backend) as sandboxes, serving(sandboxes, host, port, key, tls) as bound:
        typer.echo(f"{backend} sandboxes at {host}:{bound}")
        await asyncio.get_running_loop().create_future()


async def _execute(backend: str, spec: SandboxSpec, argv: list[str], seconds: float) -> Exit:
    async with _created(backend) as sandboxes:
        return await (await sandboxes.open(spec)).exec(argv, seconds=seconds)


async def _shell(backend: str, spec: SandboxSpec) -> int:
    """Keys go in and the screen comes out until the shell ends; gives its exit status."""
    loop = asyncio.get_running_loop()
    async with _created(backend) as sandboxes:
        box: Any = await sandboxes.open(spec)
        if not hasattr(box, "terminal"):
            raise RefusedError(f"{backend} sandboxes have no terminal: choose the local backend")
        columns, rows = shutil.get_terminal_size()
        terminal = await box.terminal(rows=rows, columns=columns)
        writing: set[asyncio.Task[None]] = set()

        def typed() -> None:
            keys = sys.stdin.buffer.raw.read(4096)  # type: ignore[attr-defined]
            if not keys:
                loop.remove_reader(sys.stdin.fileno())
            writing.add(loop.create_task(terminal.write(keys or b"\x04")))

        def resized() -> None:
            columns, rows = shutil.get_terminal_size()
            terminal.resize(rows, columns)

        with _raw(sys.stdin.fileno()):
            loop.add_reader(sys.stdin.fileno(), typed)
            loop.add_signal_handler(signal.SIGWINCH, resized)
            while terminal.ended is None:
                sys.stdout.buffer.write(await terminal.read(60.0, 0.01))
                sys.stdout.flush()
            loop.remove_reader(sys.stdin.fileno())
        return terminal.ended.code


@contextlib.asynccontextmanager
async def _created(backend: str) -> AsyncGenerator[SandboxBackend]:
    module, config = registry.configure("sandboxes", backend)
    sandboxes = module.create(config)
    try:
        yield sandboxes
    finally:
        await sandboxes.close()


@contextlib.contextmanager
def _raw(fd: int) -> Generator[None]:
    """Each key at once, where that is a terminal."""
    import termios
    import tty

    before = termios.tcgetattr(fd) if sys.stdin.isatty() else None
    if before is not None:
        tty.setraw(fd)
    try:
        yield
    finally:
        if before is not None:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _base(image: str) -> str:
    """A sandbox's base from what a person says; a spec file is built first, where that is not done yet."""
    from temper.sandboxes.images.build import build_file
    from temper.sandboxes.images.store import Store

    if not image:
        return "host"
    if Path(image).is_file():
        return f"image:{asyncio.run(build_file(Path(image), Store(), lambda _: None)).hash}"
    known = [kept.path.stem for kept in Store().images()]
    found = [name for name in known if name.startswith(image.removeprefix("image:"))]
    if len(found) != 1:
        raise MissingError(f"expected one image that begins {image!r}, found {len(found)}; {nearest('', known)}")
    return f"image:{found[0]}"
