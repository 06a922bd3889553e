"""One writer, many readers, and a run that can be gone on with after its process died."""

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from temper.core.errors import BackendError, ConfigError, CorruptError, MissingError, RefusedError
from temper.core.trace import Event, Verdict
from temper.store.run import Metrics, RunDirectory


class Consumed(msgspec.Struct, frozen=True):
    trace: str
    step: int


VERDICT = Verdict(trace="t1", verifier="exact", status="graded", blame="policy", score=1.0)
WRITER = """
import sys, time
from temper.core.trace import Event
from temper.store.run import RunDirectory
run = RunDirectory.create(sys.argv[1], {"name": "other"})
run.events.append(Event(when=0.0, what="begin"))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_run_is_read_while_it_is_written(tmp_path):
    with RunDirectory.create(tmp_path / "run", {"name": "quick"}) as run, RunDirectory.view(tmp_path / "run") as reader:
        run.verdicts.append(VERDICT)
        run.metrics.append(Metrics(3, "rl", {"reward": 0.5}))
        run.log("consumed", Consumed).append(Consumed("t1", 3))
        assert list(reader.verdicts) == [VERDICT]
        assert list(reader.metrics) == [Metrics(3, "rl", {"reward": 0.5})]
        assert list(reader.log("consumed", Consumed)) == [Consumed("t1", 3)]
        assert list(reader.traces) == []
        assert reader.recipe == {"name": "quick"}


def test_a_run_that_was_closed_goes_on_where_it_ended(tmp_path):
    with RunDirectory.create(tmp_path, Consumed("t", 1)) as run:
        run.events.append(Event(when=1.0, what="begin"))
    with RunDirectory.open(tmp_path) as run:
        run.events.append(Event(when=2.0, what="resume"))
        assert [e.what for e in run.events] == ["begin", "resume"]
        assert run.recipe == {"trace": "t", "step": 1}
        assert run.torn == {}


def test_a_second_writer_is_refused_with_the_pid_of_the_first_until_that_dies(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"ready\n"
    for way in (RunDirectory.open, lambda path: RunDirectory.create(path, {})):
        with pytest.raises(RefusedError, match=f"process {writer.pid} is running"):
            way(tmp_path)
    assert [e.what for e in RunDirectory.view(tmp_path).events] == ["begin"]
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    with (tmp_path / "events.log").open("ab") as file:
        file.write(b"half frame")
    with RunDirectory.open(tmp_path) as run:
        assert run.torn == {"events": 10}
        assert [e.what for e in run.events] == ["begin"]


def test_a_second_writer_in_the_same_process_is_refused_too(tmp_path):
    with RunDirectory.create(tmp_path, {}), pytest.raises(RefusedError, match="in this process"):
        RunDirectory.open(tmp_path)


def test_a_run_is_neither_overwritten_nor_made_up(tmp_path):
    RunDirectory.create(tmp_path / "run", {}).close()
    with pytest.raises(ConfigError, match="--resume"):
        RunDirectory.create(tmp_path / "run", {})
    for way in (RunDirectory.open, RunDirectory.view):
        with pytest.raises(MissingError, match="no run at"):
            way(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_checkpoint_of_a_run_is_found_after_it_is_opened_again(tmp_path):
    with RunDirectory.create(tmp_path, {}) as run, run.checkpoint("sft-3") as folder:
        (folder / "weights").write_bytes(b"w")
    with RunDirectory.open(tmp_path) as run:
        assert run.latest("sft").folder == tmp_path / "checkpoints" / "sft-3"
        assert run.write("report.md", "# result\n").read_text() == "# result\n"


def test_damage_in_any_log_is_found_when_the_run_is_taken_up(tmp_path):
    with RunDirectory.create(tmp_path, {}) as run:
        for step in range(3):
            run.log("consumed", Consumed).append(Consumed("t1", step))
    (tmp_path / "nohup.log").write_text("not ours\n")
    RunDirectory.open(tmp_path).close()
    content = bytearray((tmp_path / "consumed.log").read_bytes())
    content[24] ^= 1
    (tmp_path / "consumed.log").write_bytes(content)
    with pytest.raises(CorruptError, match=r"consumed\.log is damaged"):
        RunDirectory.open(tmp_path)


def test_a_place_where_no_run_can_be_is_not_called_a_full_disk(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "run", tmp_path / "file"):
        with pytest.raises(BackendError, match="cannot be created"):
            RunDirectory.create(path, {})
    with pytest.raises(BackendError, match="cannot be created"):
        RunDirectory.create("/proc/nope/run", {})
