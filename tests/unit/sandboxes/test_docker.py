"""Containers of a real Podman, in both ways: one as a node with our helper inside, and one for each sandbox.

The image is made here from nothing but links to /usr, which is shown from the host.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from temper.cli import check
from temper.core.blame import FaultError
from temper.core.errors import MissingError, RefusedError
from temper.core.protocols import SandboxBackend, Snapshots
from temper.core.task import SandboxSpec
from temper.sandboxes import docker, local
from temper.sandboxes.pool import Config, Pool

IMAGE = f"temper-test-{os.getpid()}"
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")  # the engine's own may be above the host's
LABEL = f"temper-test={os.getpid()}"


def podman(*words: str) -> str:
    return subprocess.run(["podman", *words], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("podman") is None:
        pytest.skip("no podman on PATH")
    root = tmp_path_factory.mktemp("root")
    for name in ("usr", "proc", "sys", "dev", "tmp", "etc", "run/temper"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/sandbox:/bin/sh\n")
    archive = root.with_suffix(".tar")
    with tarfile.open(archive, "w") as file:
        file.add(root, ".")
    try:
        podman("import", str(archive), IMAGE)
        podman("run", "--rm", "--network=none", *LIMITS, "--volume=/usr:/usr:ro", IMAGE, "/bin/true")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"podman does not work here: {error.stderr[-300:]}")
    yield IMAGE
    podman("rmi", "--force", IMAGE)


def config(image: str, node: bool) -> docker.Config:
    options = (*LIMITS, f"--label={LABEL}")
    return docker.Config(image=image, engine="podman", options=options, paths=("/usr",), node=node)


def run(image: str, node: bool, test: Callable[[SandboxBackend], Awaitable[None]]) -> None:
    async def play() -> None:
        backend = docker.create(config(image, node))
        assert isinstance(backend, local.Backend) == node
        try:
            await test(backend)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(play(), 110))
    assert podman("ps", "--all", "--quiet", "--filter", f"label={LABEL}") == ""


@pytest.mark.parametrize("node", [True, False], ids=["node", "containers"])
def test_commands_files_and_states(image: str, node: bool) -> None:
    async def test(backend: SandboxBackend) -> None:
        box = await backend.open(SandboxSpec(files={"a/b": b"1"}, pids=20))
        assert isinstance(box, Snapshots)
        said = await box.exec(["sh", "-c", "cat; id -u; pwd; exit 3"], stdin=b"in\n")
        assert (said.cause, said.code, said.stdout) == ("exited", 3, b"in\n1000\n/sandbox\n")
        assert (await box.exec(["sleep", "9"], seconds=0.2)).cause == "deadline"
        assert (await box.exec(["sh", "-c", "kill -9 1; kill -9 -1; echo on"])).stdout == b"on\n"
        state = await box.snapshot()
        await box.exec(["sh", "-c", "echo 2 > a/b; echo t > /tmp/t"])
        (twin,) = await box.fork(state, 1)
        await box.rollback(state)
        assert await box.get("a/b") == await twin.get("a/b") == b"1"
        assert (await box.exec(["ls", "-A", "/tmp"])).text == ""
        with pytest.raises(LookupError):
            await box.rollback("no-such-state")

    run(image, node, test)


def test_a_leased_container_goes_on_after_a_rollback(image: str) -> None:
    """It is another container then."""

    async def test(backend: SandboxBackend) -> None:
        box = await Pool(backend, Config(warm=0)).open(SandboxSpec(files={"a": b"1"}))
        assert isinstance(box, Snapshots)
        state = await box.snapshot()
        await box.put("a", b"2")
        await box.rollback(state)
        assert await box.get("a") == b"1"
        assert (await box.exec(["cat", "a"])).stdout == b"1"
        again = await box.snapshot()
        await box.put("a", b"3")
        await box.rollback(again)
        assert await box.get("a") == b"1"
        await box.close()

    run(image, False, test)


def test_a_node_rolls_back_in_milliseconds(image: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        box = await backend.open(SandboxSpec(files={f"f{n}": b"x" for n in range(10)}))
        assert isinstance(box, Snapshots)
        state = await box.snapshot()
        taken = []
        for _ in range(9):
            begin = time.perf_counter()
            await box.rollback(state)
            taken.append(time.perf_counter() - begin)
        assert min(taken) < 0.05  # the engine's own commit and start take a second or more

    run(image, True, test)


OWNER = """
import asyncio, sys
from temper.core.task import SandboxSpec
from temper.sandboxes import docker
async def main():
    backend = docker.create(docker.Config(image=sys.argv[1], engine="podman", options=tuple(sys.argv[3:]),
                                          paths=("/usr",), node=sys.argv[2] == "node"))
    box = await backend.open(SandboxSpec())
    print("ready", flush=True)
    await box.exec(["sleep", "100"], seconds=100)
asyncio.run(main())
"""


@pytest.mark.parametrize("node", ["node", "containers"])
def test_when_the_owner_is_killed_the_container_ends(image: str, node: str) -> None:
    argv = [sys.executable, "-c", OWNER, image, node, *LIMITS, f"--label={LABEL}"]
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
    assert podman("ps", "--all", "--quiet", "--filter", f"label={LABEL}")
    owner.kill()
    owner.wait()
    end = time.monotonic() + 20
    while podman("ps", "--all", "--quiet", "--filter", f"label={LABEL}"):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_container_that_is_taken_away_is_our_fault(image: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        box = await backend.open(SandboxSpec())
        podman("kill", *podman("ps", "--quiet", "--filter", f"label={LABEL}").split())
        with pytest.raises(FaultError) as caught:
            await box.exec(["true"])
        assert caught.value.fault.what == "backend-lost"

    run(image, False, test)


def test_an_engine_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingError, match="no-such-engine"):
        docker.create(docker.Config(engine="no-such-engine"))


def test_an_image_that_cannot_run_is_refused_at_once(image: str) -> None:
    with pytest.raises(RefusedError, match="no-such-image"):
        docker.create(docker.Config(engine="podman", image="localhost/no-such-image", options=LIMITS))


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_suite_finds_no_door_that_is_not_reported(image: str) -> None:
    suite = check.load("sandbox")
    make: Callable[[], SandboxBackend] = lambda: docker.create(config(image, True))  # noqa: E731
    results = asyncio.run(suite.examine(make, suite.cases(), docker.OPEN_DOORS))
    assert [result for result in results if result.door == "open"] == []
