"""A log keeps what was appended, whatever happens to the process, the disk or the end of the file."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from temper.core.errors import BackendError, CorruptError
from temper.core.trace import Event
from temper.store.log import MAGIC, Log


def event(n: int) -> Event:
    return Event(when=float(n), what="tick", why="x" * (n % 7))


def written(path: Path, n: int) -> list[int]:
    """Write n events; gives the offsets at which frames end."""
    log, ends = Log(path, Event, writable=True), []
    for i in range(n):
        log.append(event(i))
        ends.append(path.stat().st_size)
    log.close()
    return ends


def whens(path: Path) -> list[float]:
    return [e.when for e in Log(path, Event)]


def test_readers_see_records_while_they_are_written(tmp_path):
    path = tmp_path / "events.log"
    reader = Log(path, Event)
    assert reader.tail() == ([], 0)
    writer = Log(path, Event, writable=True)
    writer.append(event(0))
    first, offset = reader.tail()
    writer.append(event(1))
    second, offset = reader.tail(offset)
    assert (first, second) == ([event(0)], [event(1)])
    assert reader.tail(offset) == ([], offset)


def test_a_record_that_is_half_written_is_no_damage(tmp_path):
    """A reader that comes again and again meets large records in the middle of their writing."""
    path = tmp_path / "traces.log"
    writer = Log(path, Event, writable=True)

    def write() -> None:
        for n in range(12):
            writer.append(Event(when=float(n), what="tick", why="x" * (4 << 20 if n % 2 else 1)))

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[Event] = []
    offset = 0
    while thread.is_alive():
        found, offset = Log(path, Event).tail(offset)
        seen += found
    thread.join()
    seen += Log(path, Event).tail(offset)[0]
    writer.close()
    assert [event.when for event in seen] == [float(n) for n in range(12)]


def test_a_file_cut_at_any_byte_gives_its_complete_records_and_goes_on(tmp_path):
    ends = written(tmp_path / "whole.log", 3)
    content = (tmp_path / "whole.log").read_bytes()
    path = tmp_path / "cut.log"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        complete = [float(i) for i, end in enumerate(ends) if end <= size]
        assert whens(path) == complete
        log = Log(path, Event, writable=True)
        assert log.torn == (0 if size < len(MAGIC) else size - max([len(MAGIC), *(e for e in ends if e <= size)]))
        log.append(event(9))
        log.close()
        assert whens(path) == [*complete, 9.0]


def test_zeros_behind_the_last_record_are_a_torn_tail(tmp_path):
    path = tmp_path / "events.log"
    written(path, 2)
    with path.open("ab") as file:
        file.write(bytes(5000))
    assert whens(path) == [0.0, 1.0]
    assert Log(path, Event, writable=True).torn == 5000


def test_any_byte_changed_before_the_last_record_is_a_corrupt_file(tmp_path):
    path = tmp_path / "events.log"
    ends = written(path, 3)
    content = path.read_bytes()
    for at in range(ends[1]):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        start = max([e for e in (len(MAGIC), *ends) if e <= at], default=0)
        for writable in (False, True):
            with pytest.raises(CorruptError, match=r"events\.log") as caught:
                list(Log(path, Event, writable=writable))
        assert at < len(MAGIC) or f"at byte {start}:" in str(caught.value)
        assert path.stat().st_size == len(content)


def test_a_log_of_another_type_is_said_so(tmp_path):
    written(tmp_path / "events.log", 1)
    with pytest.raises(CorruptError, match=r"at byte 8: no int"):
        list(Log(tmp_path / "events.log", int))


def test_a_reader_cannot_append(tmp_path):
    with pytest.raises(BackendError, match="reading only"):
        Log(tmp_path / "events.log", Event).append(event(0))


def test_threads_may_append_at_once(tmp_path):
    log = Log(tmp_path / "events.log", Event, writable=True)
    threads = [
        threading.Thread(target=lambda n=n: [log.append(event(n * 50 + i)) for i in range(50)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(whens(log.path)) == list(range(200))


def test_what_was_appended_survives_kill_9(tmp_path):
    code = """
import sys
from pathlib import Path
from temper.core.trace import Event
from temper.store.log import Log
log = Log(Path(sys.argv[1]), Event, writable=True)
n = 0
while True:
    log.append(Event(when=float(n), what="tick", why="x" * 3000))
    n += 1
    print(n, flush=True)
"""
    path = tmp_path / "events.log"
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        before = len(whens(path))
        child.stdout.readline()
        time.sleep(0.05)
        child.kill()
        said = [line for line in child.stdout.read().split("\n")[:-1] if line]
        child.wait()
        child.stdout.close()
        assert len(whens(path)) - before >= int(said[-1])


FULL_DISK = """
import sys
from pathlib import Path
from temper.core.errors import BackendError
from temper.core.trace import Event
from temper.store.log import Log
path = Path(sys.argv[1], "events.log")
log = Log(path, Event, writable=True)
n = 0
try:
    while True:
        log.append(Event(when=float(n), what="tick", why="x" * 5000))
        n += 1
except BackendError as error:
    print(error)
for size in (1, 100_000):
    Path(sys.argv[1], "ballast").unlink(missing_ok=True)
    log.append(Event(when=float(n), what="tick", why="x" * size))
    n += 1
assert [e.when for e in Log(path, Event)] == [float(i) for i in range(n)], n
print(n)
"""


def test_a_full_disk_loses_nothing_and_says_what_to_do(on_a_small_disk, tmp_path):
    done = on_a_small_disk(FULL_DISK)
    assert done.returncode == 0, done.stderr
    message, records = done.stdout.splitlines()
    assert f"the disk at {tmp_path} takes no more" in message
    assert "No space left on device" in message
    assert "bytes are needed" in message
    assert "resume the run" in message
    assert int(records) > 10


def test_a_file_over_its_size_limit_is_the_disks_fault_too(tmp_path):
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        + FULL_DISK.split("for size")[0]
    )
    code += "print(len(list(Log(path, Event))) == n)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert done.stdout.endswith("True\n")
