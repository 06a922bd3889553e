"""Harbor tasks become tasks; tests and solution stay private; what an image would hold is told as a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from temper.core import registry
from temper.core.errors import ConfigError, MissingError
from temper.core.task import Limits, Message

# terminal-bench 2.1, tasks/fix-git/task.toml (Apache-2.0), without its people and estimates
FIX_GIT = """
schema_version = "1.1"
artifacts = []
[task]
name = "terminal-bench/fix-git"
keywords = ["coding", "version-control"]
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 900.0
[agent]
timeout_sec = 900.0
[environment]
build_timeout_sec = 600.0
docker_image = "alexgshaw/fix-git:20260403"
cpus = 1
memory_mb = 2048
storage_mb = 10240
gpus = 0
allow_internet = true
mcp_servers = []
[verifier.env]
[environment.env]
[solution.env]
"""
FILES = {
    "instruction.md": "Find my lost changes.\n",
    "task.toml": FIX_GIT,
    "environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY src /app/src\n",
    "environment/src/a.txt": "a\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "git merge\n",
}


def read(root: Path, files: dict[str, str] = FILES, **changed: str):
    """The tasks of a folder that holds `files`, with task.toml (or others, "/" as "__") changed."""
    toml = {"task.toml": changed.pop("toml", files.get("task.toml", ""))}
    for path, text in {**files, **toml, **{k.replace("__", "/"): v for k, v in changed.items()}}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    importer = registry.find("importers", "harbor").create()
    return list(importer.tasks(str(root))), importer.loss()


def test_a_task_of_terminal_bench(tmp_path):
    (task,), loss = read(tmp_path)
    assert task.id == "terminal-bench/fix-git"
    assert task.messages == (Message("user", "Find my lost changes.\n"),)
    assert task.limits == Limits(seconds=900.0)
    assert task.sandbox.files == {"src/a.txt": b"a\n"}
    assert (task.sandbox.memory, task.sandbox.disk) == (2 << 30, 10 << 30)
    assert task.reference["tests"] == {"test.sh": FILES["tests/test.sh"].encode()}
    assert task.reference["solution"] == {"solve.sh": b"git merge\n"}
    assert task.reference["seconds"] == 900.0
    assert loss == [
        "terminal-bench/fix-git: environment.docker_image = 'alexgshaw/fix-git:20260403'",
        "terminal-bench/fix-git: environment.network_mode = 'public': sandboxes have no network",
        "terminal-bench/fix-git: artifacts: none are declared, so that the tests will see nothing of what was done",
        "terminal-bench/fix-git: environment/Dockerfile: not built",
    ]


def test_a_current_task_without_image_or_network_loses_nothing(tmp_path):
    toml = """
    schema_version = "1.4"
    artifacts = ["/app/out.txt", "log/b.txt", { source = "/app/c" }]
    [environment]
    network_mode = "no-network"
    workdir = "/app"
    env = { MODE = "fast" }
    """
    (task,), loss = read(tmp_path, {k: v for k, v in FILES.items() if "Dockerfile" not in k}, toml=toml)
    assert task.id == tmp_path.name
    assert task.artifacts == ("out.txt", "log/b.txt", "c")
    assert task.sandbox.env == {"MODE": "fast"}
    assert loss == []


def test_older_keys_mean_what_they_meant(tmp_path):
    toml = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n'
    (task,), loss = read(tmp_path, toml=toml)
    assert (task.sandbox.memory, task.sandbox.disk) == (2 << 30, 512 << 20)
    assert not any("network" in line for line in loss)


def test_what_cannot_be_said_is_told(tmp_path):
    toml = """
    artifacts = ["/etc/passwd", "../up", { source = "/app/db", service = "db" }]
    [agent]
    user = "agent"
    [verifier]
    environment_mode = "separate"
    env = { KEY = "${SECRET}" }
    [environment]
    gpus = 1
    network_mode = "allowlist"
    allowed_hosts = ["example.com"]
    [environment.healthcheck]
    command = "true"
    """
    (task,), loss = read(tmp_path, toml=toml)
    assert task.artifacts == ()
    for what in ("agent.user", "separate", "SECRET", "gpus = 1", "allowlist", "example.com", "healthcheck"):
        assert any(what in line for line in loss), what
    assert sum("is not a path below /app" in line for line in loss) == 3


def test_a_folder_of_tasks_leaves_out_what_it_cannot_run(tmp_path):
    for name, toml in [
        ("b", ""),
        ("a", ""),
        ("many", '[[steps]]\nname = "s"'),
        ("win", '[environment]\nos = "Windows"'),
    ]:
        for path, text in {**FILES, "task.toml": toml}.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text, "utf-8")
    importer = registry.find("importers", "harbor").create()
    assert [task.id for task in importer.tasks(str(tmp_path))] == ["a", "b"]
    assert [line for line in importer.loss() if "left out" in line] == [
        "many: left out: a task of several steps",
        "win: left out: not for Linux",
    ]


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("a =\nb = 1", r"task\.toml is not valid TOML: .*line 1"),
        ('schema_version = "2.0"', r"task\.toml: .*'2\.0' - at `\$\.schema_version`"),
        ('[agent]\ntimeout_sec = "long"', r"task\.toml: .*`\$\.agent\.timeout_sec`"),
        ('[environment]\nmemory = "lots"', r"task\.toml: environment\.memory: expected a size like"),
        ('environment = "docker"', r"task\.toml: environment: expected a table"),
        ("[agent]\ntimeout_sec = -5.0", r"task\.toml: .*`\$\.agent\.timeout_sec`"),
        ("[agent]\ntimeout_sec = inf", r"task\.toml: .*`\$\.agent\.timeout_sec`"),
        ("[verifier]\ntimeout_sec = nan", r"task\.toml: .*`\$\.verifier\.timeout_sec`"),
        ("[environment]\ncpus = -2", r"task\.toml: .*`\$\.environment\.cpus`"),
        ("[environment]\nmemory_mb = -4", r"task\.toml: .*`\$\.environment\.memory_mb`"),
        ("[environment]\nstorage_mb = 9999999999999999", r"task\.toml: .*`\$\.environment\.storage_mb`"),
        ("a = " + "[" * 5000 + "]" * 5000, r"task\.toml is not valid TOML: .*recursion"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path, toml, why):
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, toml=toml)


@pytest.mark.parametrize("path", ["tests/test.sh", "instruction.md"])
def test_a_task_needs_an_instruction_and_tests(tmp_path, path):
    with pytest.raises(ConfigError, match=path):
        read(tmp_path, {k: v for k, v in FILES.items() if k != path})


@pytest.mark.parametrize("path", ["tests/outside", "instruction.md", "task.toml"])
def test_links_are_not_followed(tmp_path, path):
    read(tmp_path)
    (tmp_path / path).unlink(missing_ok=True)
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_text("# a file of somebody else", "utf-8")
    (tmp_path / path).symlink_to(secret)
    with pytest.raises(ConfigError, match="symbolic link"):
        list(registry.find("importers", "harbor").create().tasks(str(tmp_path)))


@pytest.mark.parametrize("lines", ["WORKDIR /srv/app", "WORKDIR /tmp\nWORKDIR /srv\nWORKDIR app", "WORKDIR srv/app"])
def test_a_working_directory_is_relative_to_the_one_before(tmp_path, lines):
    toml = 'artifacts = ["/srv/app/out.txt"]'
    (task,), _ = read(tmp_path, toml=toml, environment__Dockerfile=f"FROM debian\n{lines}\n")
    assert task.artifacts == ("out.txt",)


def test_a_folder_without_tasks_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"task\.toml"):
        next(registry.find("importers", "harbor").create().tasks(str(tmp_path)))
