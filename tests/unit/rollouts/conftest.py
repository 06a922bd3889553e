"""A chat format, a folder that serves as a sandbox with snapshots (no isolation: the tests' own commands run in it)."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.protocols import Resources
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.models.chat import ChatFormat


class Folder:
    """`core.protocols.Sandbox` and `Snapshots` over a plain folder."""

    capabilities: Mapping = {}

    def __init__(self, root: Path, backend: Folders) -> None:
        self.id, self.root, self.backend = root.name, root, backend
        self.closed = False

    async def exec(self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = 10.0, env=None) -> Exit:
        if self.backend.lost:
            raise FaultError("backend-lost", "sandboxes.folder", "the folder went away")
        child = await asyncio.create_subprocess_exec(
            *argv, cwd=self.root, env={**(env or {}), "PATH": "/usr/bin:/bin"},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(child.communicate(stdin), seconds)
        except TimeoutError:
            child.kill()
            await child.communicate()
            return Exit(cause="deadline", code=9)
        return Exit(cause="exited", code=child.returncode or 0, stdout=out, stderr=err)

    async def put(self, path: str, content: bytes) -> None:
        (self.root / path).write_bytes(content)

    async def get(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    async def snapshot(self) -> str:
        copy = self.backend.new()
        shutil.copytree(self.root, copy.root, dirs_exist_ok=True)
        return copy.id

    async def rollback(self, snapshot: str) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self.root.parent / snapshot, self.root)

    async def fork(self, snapshot: str, n: int) -> list[Folder]:
        forks = [self.backend.new() for _ in range(n)]
        for fork in forks:
            await fork.rollback(snapshot)
        return forks

    async def close(self) -> None:
        self.closed = True


class Folders:
    """`core.protocols.SandboxBackend`; `lost` makes every command of its sandboxes fail."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened: list[Folder] = []
        self.lost = False

    def new(self) -> Folder:
        folder = Folder(self.root / str(len(self.opened)), self)
        folder.root.mkdir()
        self.opened.append(folder)
        return folder

    async def open(self, spec: SandboxSpec) -> Folder:
        folder = self.new()
        for path, content in spec.files.items():
            await folder.put(path, content)
        return folder

    def capabilities(self) -> Mapping:
        return {}

    async def close(self) -> None:
        pass


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture
def resources(folders: Folders) -> Resources:
    return Resources(folders, time.monotonic, random.Random(0))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


@pytest.fixture(scope="session")
def chat_format(tokenizer: Tokenizer) -> ChatFormat:
    module, config = registry.configure("models.chat", "chatml")
    return module.create(config, tokenizer)


@pytest.fixture
def clock() -> Callable[[], float]:
    return time.monotonic
