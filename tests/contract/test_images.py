"""Images, built for real and used in real sandboxes: built once, shared without copying, never half-made, collected.

`test_images_work_for_a_plain_user` runs them again without root (a part of them, and nightly all). Nothing here needs a
network: pip's wheel is the one that ensurepip ships, the other wheel and the Debian package are made by the tests after
their formats' descriptions (packaging.python.org, binary distribution format; deb(5)).
"""

from __future__ import annotations

import asyncio
import contextlib
import ensurepip
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from temper.core.blame import FaultError
from temper.core.errors import ConfigError, CorruptError, MissingError
from temper.core.protocols import Sandbox
from temper.core.task import SandboxSpec
from temper.sandboxes import local
from temper.sandboxes.images import bases, packages, records
from temper.sandboxes.images.build import build, build_file
from temper.sandboxes.images.records import Image, ImageSpec
from temper.sandboxes.images.store import Store, remove_tree

SMALL = SandboxSpec(memory=64 << 20, disk=4 << 20)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def built(store: Store, spec: ImageSpec, said: list[str] | None = None) -> Image:
    lines: list[str] = []
    image, _ = asyncio.run(build(spec, store, None, Path(), (lines if said is None else said).append))
    return image


@contextlib.asynccontextmanager
async def started(store: Store) -> AsyncIterator[local.Backend]:
    backend = local.Backend(local.Config(), store)
    try:
        yield backend
    finally:
        await backend.close()


def inside(store: Store, image: Image, test: Callable[[Sandbox], Awaitable[None]]) -> None:
    async def run() -> None:
        async with started(store) as backend:
            await test(await backend.open(SandboxSpec(base=f"image:{image.hash}")))

    asyncio.run(run())


def wheel(folder: Path) -> Path:
    path = folder / "tiny_dep-1.2-py3-none-any.whl"
    info = "tiny_dep-1.2.dist-info"
    files = {
        "tiny_dep.py": "VALUE = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-dep\nVersion: 1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


# ---- building, and starting from it ----


def test_pinned_requirements_are_installed_once_and_a_hundred_sandboxes_start_without_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = list((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    if not bundled:
        pytest.skip("this Python's ensurepip ships no pip")
    store, project = Store(tmp_path / "store"), tmp_path / "project"
    project.mkdir()
    sha256 = hashlib.sha256(wheel(project).read_bytes()).hexdigest()
    (project / "main.py").write_text(
        "import tiny_dep, os; print(tiny_dep.VALUE, os.environ['COLOUR'], open('made').read())"
    )
    pip = hashlib.sha256(bundled[0].read_bytes()).hexdigest()
    version = bundled[0].name.split("-")[1]
    (project / "env.toml").write_text(
        f'python = ["tiny-dep==1.2 --hash=sha256:{sha256}", "pip=={version} --hash=sha256:{pip}"]\n'
        "run = [\"python -c 'import tiny_dep; print(tiny_dep.VALUE + 1)' > made\"]\n"
        '[files]\n"main.py" = "main.py"\n[env]\nCOLOUR = "blue"\n'
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{project} {bundled[0].parent}")
    said: list[str] = []
    image = asyncio.run(build_file(project / "env.toml", store, said.append))
    assert not any("was there" in line for line in said)
    lock = records.read_lock(project / "env.lock")
    assert lock is not None
    assert lock.python is not None
    assert {a.name: a.sha256 for a in lock.python.found} == {"tiny-dep": sha256, "pip": pip}
    assert lock.image == image.hash

    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")  # offline from here on
    assert asyncio.run(build_file(project / "env.toml", store, said.append)) == image
    assert all("was there" in line for line in said[len(said) // 2 :])
    before = used(store)

    async def run() -> None:
        async with started(store) as backend:
            spec = SandboxSpec(base=f"image:{image.hash}", memory=64 << 20, disk=4 << 20)
            boxes = await asyncio.gather(*(backend.open(spec) for _ in range(100)))
            said = [await box.exec(["python", "main.py"]) for box in boxes[:3]]
            assert [end.text for end in said] == ["42 blue 43\n\n"] * 3
            full = await asyncio.gather(
                *(box.exec(["sh", "-c", "cat made; df --output=used . | tail -1"]) for box in boxes)
            )
            assert {end.text.split()[0] for end in full} == {"43"}
            assert {int(end.text.split()[1]) for end in full} == {0}  # bytes of its own that a sandbox holds
            await boxes[0].put("made", b"other")
            assert (await boxes[0].get("made"), await boxes[1].get("made")) == (b"other", b"43\n")
            assert (await boxes[0].exec(["touch", "/opt/env/x"])).code != 0

    asyncio.run(run())
    assert used(store) == before


def used(store: Store) -> list[tuple[str, int]]:
    """Every file of every layer, with its time of change."""
    return sorted(
        (os.path.join(top, name), os.lstat(os.path.join(top, name)).st_ctime_ns)  # noqa: PTH118
        for top, _, names in os.walk(store.layers)
        for name in names
    )


def test_commands_see_the_layers_below_and_change_only_their_own(store: Store) -> None:
    run = (
        "mkdir d; echo one > d/a; echo x > gone",
        "rm gone; rm -r d; mkdir d; echo two > d/b; ln d/b hard; ln -s d soft",
    )
    image = built(store, ImageSpec(run=run))

    async def test(box: Sandbox) -> None:
        found = await box.exec(
            ["sh", "-c", "ls -A; ls d; cat d/b hard soft/b; stat -c %h hard; rm -r d; mkdir d; ls -A d"]
        )
        assert found.text.split() == ["d", "hard", "soft", "b", "two", "two", "two", "2"]

    inside(store, image, test)
    lower = built(store, ImageSpec(run=run[:1]))
    assert lower.layers == image.layers[:-1]

    async def unchanged(box: Sandbox) -> None:
        assert (await box.exec(["sh", "-c", "cat d/a gone"])).text == "one\nx\n"

    inside(store, lower, unchanged)


def test_a_sandbox_of_an_image_rolls_back_and_forks(store: Store) -> None:
    image = built(store, ImageSpec(run=("mkdir d; echo 1 > d/a; echo 2 > d/b; echo 3 > c",)))
    state = ["sh", "-c", "find . | sort | tr '\\n' ' '; cat d/* c 2>&1 | tr '\\n' ' '"]

    async def test(box: Sandbox) -> None:
        assert isinstance(box, local.Local)
        await box.exec(["sh", "-c", "echo 4 > d/a; rm d/b; echo 5 > new"])
        then = await box.snapshot()
        was = (await box.exec(state)).text
        assert was == ". ./c ./d ./d/a ./new 4 3 "
        await box.exec(["sh", "-c", "rm -r d c; mkdir d; echo 6 > d/z"])
        assert (await box.exec(state)).text == ". ./d ./d/z ./new 6 cat: c: No such file or directory "
        (fork,) = await box.fork(then, 1)
        await box.rollback(then)
        assert (await box.exec(state)).text == was
        assert (await fork.exec(state)).text == was
        await fork.close()

    inside(store, image, test)


def test_a_command_that_fails_is_told_with_its_output_and_leaves_no_layer(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"`echo half > x; echo why >&2; exit 3` ended: exited 3 .*\n?why"):
        built(store, ImageSpec(run=("echo half > x; echo why >&2; exit 3",)))
    assert len(list(store.layers.iterdir())) == 1  # the base's
    assert list(store.root.glob("images/*")) == []


def test_an_image_can_begin_with_another(store: Store, tmp_path: Path) -> None:
    first = built(store, ImageSpec(run=("echo 1 > one",)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "two").write_text("2")
    second = built(
        store,
        ImageSpec(
            base=f"image:{first.hash}", files={"two": str(tmp_path / "folder/two"), "/srv/t": str(tmp_path / "folder")}
        ),
    )

    async def test(box: Sandbox) -> None:
        assert (await box.exec(["sh", "-c", "cat one two /srv/t/two"])).text == "1\n22"

    assert second.layers[: len(first.layers)] == first.layers
    inside(store, second, test)


def test_a_repository_is_checked_out_at_its_commit_without_what_came_later(store: Store, tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("no git")
    git = ["git", "-c", "user.name=Somebody", "-c", "user.email=s@example.org", "-C", str(tmp_path / "r")]
    subprocess.run(["git", "init", "-q", str(tmp_path / "r")], check=True)
    for word in ("first", "second", "answer"):
        (tmp_path / "r" / "file").write_text(word)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", word], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD~1"], capture_output=True, text=True, check=True).stdout.strip()
    url = f"file://{tmp_path / 'r'}"
    image = built(store, ImageSpec(repository=records.Repository(url=url, commit=commit, path="work/tree")))

    async def test(box: Sandbox) -> None:
        found = await box.exec(
            ["sh", "-c", "cd work/tree; cat file; echo; git log --format=%s --all; git status --short"]
        )
        assert found.text.split() == ["second", "second"]
        leaks = await box.exec(["sh", "-c", f"grep -rlaE 'answer|{tmp_path}' work; true"])
        assert leaks.text == ""

    inside(store, image, test)


# ---- builders beside each other, and killed ones ----


def test_two_builders_of_one_image_do_the_work_once(store: Store) -> None:
    spec = ImageSpec(run=("sleep 0.3; cat /proc/sys/kernel/random/uuid > who",))
    said: list[str] = []

    async def both() -> list[Image]:
        one = (build(spec, store, None, Path(), said.append) for _ in range(2))
        return [image for image, _ in await asyncio.gather(*one)]

    first, second = asyncio.run(both())
    assert first == second
    assert sorted("was there" in line for line in said) == [False, False, True, True]


KILLED = """
import asyncio, sys
from pathlib import Path
from temper.sandboxes.images.build import build
from temper.sandboxes.images.records import ImageSpec
from temper.sandboxes.images.store import Store, remove_tree
asyncio.run(build(ImageSpec(run=(sys.argv[2],)), Store(Path(sys.argv[1])), None, Path(), print))
"""


def test_a_killed_build_leaves_nothing_half_made_in_use(store: Store) -> None:
    command = "echo begun > begun; sleep 1; echo done > done"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(store.root), command])
    until = time.monotonic() + 20
    while not list(store.layers.glob("work-*/upper/sandbox/begun")) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert len(list(store.layers.glob("work-*"))) == 1
    image = built(store, ImageSpec(run=(command,)))
    assert list(store.layers.glob("work-*")) == []

    async def test(box: Sandbox) -> None:
        assert (await box.exec(["cat", "begun", "done"])).text == "begun\ndone\n"

    inside(store, image, test)


# ---- collection ----


def test_gc_keeps_what_is_named_used_or_recent(store: Store, tmp_path: Path) -> None:
    images = {}
    for name in ("named", "used", "left"):
        (tmp_path / f"{name}.toml").write_text(f'run = ["echo {name} > x"]')
        images[name] = asyncio.run(build_file(tmp_path / f"{name}.toml", store, lambda _: None))
    for name in ("used", "left"):
        (tmp_path / f"{name}.lock").unlink()
    assert asyncio.run(store.gc(days=1)) == []

    async def run() -> None:
        async with started(store) as backend:
            box = await backend.open(SandboxSpec(base=f"image:{images['used'].hash}"))
            assert store.root / "images" / f"{images['left'].hash}.json" in await store.gc(days=0, dry=True)
            assert len(store.images()) == 3
            await store.gc(days=0)
            assert (await box.exec(["cat", "x"])).text == "used\n"
            assert {kept.path.stem for kept in store.images()} == {images["named"].hash, images["used"].hash}
            assert not (store.layers / images["left"].layers[-1]).exists()
            with pytest.raises(MissingError, match=images["left"].hash):
                await backend.open(SandboxSpec(base=f"image:{images['left'].hash}"))

    asyncio.run(run())
    asyncio.run(store.gc(days=0))
    assert [kept.path.stem for kept in store.images()] == [images["named"].hash]
    inside(store, images["named"], lambda box: box.get("x"))


# ---- bases ----


def archive(members: list[tuple[str, bytes | str | None]], path: Path) -> Path:
    """A tar: bytes are a file, a string a link's target, None a directory."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def oci(folder: Path, layers: list[Path]) -> Path:
    """An image layout as image-layout.md has it."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, kind: str) -> dict[str, object]:
        name = hashlib.sha256(content).hexdigest()
        (blobs / name).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{name}", "size": len(content)}

    packed = [blob(gzip.compress(layer.read_bytes(), mtime=0), "layer.v1.tar+gzip") for layer in layers]
    config = blob(json.dumps({"config": {"Env": ["PATH=/bin", "KIND=oci"]}}).encode(), "config.v1+json")
    manifest = blob(json.dumps({"schemaVersion": 2, "config": config, "layers": packed}).encode(), "manifest.v1+json")
    other = {**manifest, "digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "riscv"}}
    manifest["platform"] = {"os": "linux", "architecture": bases.ARCHITECTURE}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [other, manifest]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


@pytest.fixture
def image_layers(tmp_path: Path) -> list[Path]:
    """Two layers whose only program is our helper, which needs no library; the second removes some of the first."""
    program = local.helper().read_bytes()
    first = [("bin/helper", program), ("etc/passwd", b"root:x:0:0::/:/bin/sh\n"), ("sandbox/kept", b"1"),
             ("sandbox/gone", b"2"), ("sandbox/d/old", b"3"), ("sandbox/e/old", b"4")]  # fmt: skip
    second = [("sandbox/.wh.gone", b""), ("sandbox/d/.wh..wh..opq", b""), ("sandbox/d/new", b"5"),
              ("sandbox/e/.wh.old", b""), ("sandbox/e/new", b"6"), ("sandbox/d/.wh.old", b"")]  # fmt: skip
    return [archive(first, tmp_path / "1.tar"), archive(second, tmp_path / "2.tar")]


@pytest.mark.parametrize("form", ["directory", "archive"])
def test_an_oci_image_is_a_base_with_its_whiteouts(
    form: str, store: Store, tmp_path: Path, image_layers: list[Path]
) -> None:
    base = oci(tmp_path / "oci", image_layers)
    if form == "archive":
        with tarfile.open(tmp_path / "oci.tar", "w") as tar:
            tar.add(base, ".")
        base = tmp_path / "oci.tar"
    image = built(store, ImageSpec(base=str(base)))
    assert image.env["KIND"] == "oci"

    async def test(box: Sandbox) -> None:
        kept = {path: await box.get(path) for path in ("kept", "d/new", "e/new")}
        assert kept == {"kept": b"1", "d/new": b"5", "e/new": b"6"}
        for path in ("gone", "d/old", "e/old", "d/.wh..wh..opq", ".wh.gone"):
            with pytest.raises(FileNotFoundError):
                await box.get(path)
        assert (await box.exec(["helper", "filter"])).stdout == local.seccomp_filter()
        assert (await box.exec(["/usr/bin/env"])).code == 127  # nothing of the host's

    inside(store, image, test)


def test_a_directory_and_a_tarball_are_the_same_base(store: Store, tmp_path: Path, image_layers: list[Path]) -> None:
    tree = tmp_path / "tree"
    bases.unpack(image_layers[0], tree)
    for base in (image_layers[0], tree):
        image = built(store, ImageSpec(base=str(base)))

        async def test(box: Sandbox) -> None:
            assert await box.get("e/old") == b"4"
            assert (await box.exec(["/bin/helper", "filter"])).ok

        inside(store, image, test)


@pytest.mark.parametrize("place", ["proc", "tmp"])
def test_an_image_with_a_link_where_we_mount_is_refused(place: str, store: Store, tmp_path: Path) -> None:
    image = built(store, ImageSpec(base=str(archive([("etc/hostname", b"h"), (place, "etc")], tmp_path / "base.tar"))))
    with pytest.raises(FaultError, match=f"/image/{place}: Not a directory"):
        inside(store, image, lambda box: box.exec(["x"]))


def test_a_blob_with_other_content_is_refused(store: Store, tmp_path: Path, image_layers: list[Path]) -> None:
    base = oci(tmp_path / "oci", image_layers)
    largest = max((base / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes() + b"\0")
    with pytest.raises(CorruptError, match="no blob sha256:"):
        built(store, ImageSpec(base=str(base)))


@pytest.mark.parametrize("index", [None, b"", b"[]", b"{}", b'{"manifests": [{"digest": "sha256:x"}]}'])
def test_a_layout_without_a_proper_index_is_refused(
    index: bytes | None, store: Store, tmp_path: Path, image_layers: list[Path]
) -> None:
    base = oci(tmp_path / "oci", image_layers)
    (base / "index.json").unlink()
    if index is not None:
        (base / "index.json").write_bytes(index)
    with pytest.raises(CorruptError, match="no OCI image"):
        built(store, ImageSpec(base=str(base)))


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "d/.wh..."])
def test_a_whiteout_of_no_name_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    with pytest.raises(CorruptError, match="is no name"):
        bases.unpack(archive([("d", None), (name, b"")], tmp_path / "bad.tar"), tmp_path / "into", whiteouts=True)
    assert os.listxattr(tmp_path) == []


def test_a_repository_or_file_may_not_leave_the_image(store: Store, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    elsewhere = records.Repository(url=str(tmp_path), commit="0" * 40, path="../../out")
    for spec in (ImageSpec(repository=elsewhere), ImageSpec(files={"../../out": str(tmp_path / "f")})):
        with pytest.raises(ConfigError, match="inside the image"):
            built(store, spec)
    assert not list(store.root.rglob("out"))


def test_the_hosts_users_are_not_read_through_a_link(store: Store, tmp_path: Path) -> None:
    image = built(store, ImageSpec(base=str(archive([("etc", "/etc"), ("x", b"")], tmp_path / "base.tar"))))
    assert (store.layers / image.layers[-1] / "etc/passwd").read_text() == "user:x:1000:1000:user:/sandbox:/bin/sh\n"


@pytest.mark.parametrize(
    "members",
    [
        [("../out", b"x")],
        [("a/../../out", b"x")],
        [("a", ".."), ("a/out", b"x")],
        [("a", "/"), ("a/tmp/out", b"x")],
        [("d", None), ("d/up", "../.."), ("d/up/out", b"x")],
    ],
)
def test_an_archive_that_leads_out_is_refused(members: list[tuple[str, bytes | str | None]], tmp_path: Path) -> None:
    into = tmp_path / "a" / "into"
    into.mkdir(parents=True)
    with pytest.raises(CorruptError, match="leads out"):
        bases.unpack(archive(members, tmp_path / "bad.tar"), into)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "bad.tar"}
    assert list((tmp_path / "a").iterdir()) == [into]


def test_an_archive_cannot_link_a_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    for linkname in ("../secret", str(tmp_path / "secret"), "up/secret"):
        with tarfile.open(tmp_path / "bad.tar", "w") as tar:
            up, link = tarfile.TarInfo("up"), tarfile.TarInfo("x")
            up.type, up.linkname, link.type, link.linkname = tarfile.SYMTYPE, "..", tarfile.LNKTYPE, linkname
            tar.addfile(up)
            tar.addfile(link)
        with pytest.raises(CorruptError):
            bases.unpack(tmp_path / "bad.tar", tmp_path / f"into{len(linkname)}")
        assert (tmp_path / "secret").stat().st_nlink == 1


def repository(folder: Path, output: str) -> str:
    """A Debian repository with one package, whose command says `output`; gives the package's hash."""
    package, deb = folder / "package", folder / "temper-hello_2.0-1_all.deb"
    (package / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (package / "bin").mkdir(exist_ok=True)
    control = (
        "Package: temper-hello\nVersion: 1:2.0-1\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: d\n"
    )
    (package / "DEBIAN/control").write_text(control)
    (package / "bin/temper-hello").write_text(f"#!/bin/sh\necho {output}")
    (package / "bin/temper-hello").chmod(0o755)
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", package, deb], check=True, capture_output=True)
    sha256 = hashlib.sha256(deb.read_bytes()).hexdigest()
    entry = f"{control}Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {sha256}\n"
    (folder / "Packages").write_text(entry)
    subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True)
    return sha256


def test_an_apt_package_is_unpacked_and_locked(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("no apt")
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{tmp_path} ./\n")
    for name in ("lists/partial", "cache/archives/partial"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{tmp_path}/sources.list"; Dir::Etc::SourceParts "-";\n'
        f'Dir::State::Lists "{tmp_path}/lists"; Dir::Cache "{tmp_path}/cache"; APT::Sandbox::User "root";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    sha256 = repository(tmp_path, "hello")
    spec = ImageSpec(apt=("temper-hello",))
    image, lock = asyncio.run(build(spec, store, None, Path(), lambda _: None))
    assert lock.apt is not None
    assert [(a.name, a.version, a.sha256) for a in lock.apt.found] == [("temper-hello", "1:2.0-1", sha256)]

    async def test(box: Sandbox) -> None:
        assert (await box.exec(["temper-hello"])).text == "hello\n"  # /bin is a link to /usr/bin, and stays one
        assert (await box.exec(["ls", "/bin/true"])).ok

    inside(store, image, test)
    repository(tmp_path, "something else")
    assert asyncio.run(build(spec, store, lock, Path(), lambda _: None))[0] == image
    remove_tree(store.root / "files" / sha256)
    with pytest.raises(CorruptError, match="differs from the lock: temper-hello"):
        asyncio.run(build(spec, store, lock, Path(), lambda _: None))


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg")
def test_packages_go_where_the_base_has_its_directories_and_never_out_of_their_layer(tmp_path: Path) -> None:
    (outside := tmp_path / "outside").mkdir()

    def deb(name: str, path: str, link: str = "") -> Path:
        root = tmp_path / name
        (root / path).parent.mkdir(parents=True)
        (root / path).symlink_to(link) if link else (root / path).write_text(name)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: d\n"
        )
        subprocess.run(["dpkg-deb", "--build", root, f"{root}.deb"], check=True, capture_output=True)
        return Path(f"{root}.deb")

    link, through, plain = deb("link", "usr/lib", str(outside)), deb("through", "usr/lib/x"), deb("plain", "lib/y")
    for number, (files, links) in enumerate([([link, through], {}), ([link, plain], {"lib": "usr/lib"})]):
        (into := tmp_path / f"into{number}").mkdir()
        packages.unpack_debs(into, files, links, "")  # a directory replaces the link
    with pytest.raises(CorruptError, match="leads out"):
        packages.unpack_debs(into, [plain], {"lib": "../outside"}, "")
    (into / "var").symlink_to(outside)
    with pytest.raises(CorruptError, match="leads out"):
        packages.unpack_debs(into, [plain], {}, "Package: old\n")
    assert list(outside.iterdir()) == []
    (into := tmp_path / "into").mkdir()
    packages.unpack_debs(into, [through, plain], {"lib": "/usr/lib"}, "Package: old\n")
    assert {path.name: path.read_text() for path in (into / "usr/lib").iterdir()} == {"x": "through", "y": "plain"}
    assert not (into / "lib").exists()
    status = (into / "var/lib/dpkg/status").read_text().split("\n\n")
    assert [entry.split("\n")[0] for entry in status] == ["Package: old", "Package: through", "Package: plain"]


# ---- again, as a plain user ----


@pytest.mark.timeout(200)
@pytest.mark.parametrize("which", ["commands or forks or oci", pytest.param("test", marks=pytest.mark.nightly)])
def test_images_work_for_a_plain_user(
    which: str, as_plain_user: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    suite = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(Path(__file__).parents[2]), __file__]
    done = as_plain_user(*suite, "-k", which, "--basetemp=/tmp/temper-images", seconds=180)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
