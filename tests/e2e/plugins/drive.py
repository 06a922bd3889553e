"""`temper` in processes that begin with everything imported, so that runs can be many, and killed often."""

import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["plugins.preload"])


class Command:
    """`temper WORDS`, started. What it says on stderr is kept."""

    def __init__(self, *words):
        self._errors = Path(tempfile.mkstemp(prefix="temper-e2e-")[1])
        self.process = CONTEXT.Process(target=_main, args=(list(map(str, words)), str(self._errors)))
        self.process.start()

    def finish(self, seconds=100):
        """Its exit status and what it said. It may not take longer."""
        self.process.join(seconds)
        late = self.process.exitcode is None
        self.kill()
        said = self._errors.read_text()
        self._errors.unlink()
        assert not late, f"it still runs after {seconds} s: {said}"
        return self.process.exitcode, said

    def kill(self):
        self.process.kill()
        self.process.join()


def run(recipe, folder):
    """A new run of the recipe in `folder`, or the one that is there, gone on with."""
    if (folder / "recipe.json").exists():
        return Command("run", "--resume", folder)
    return Command("run", recipe, "--root", folder.parent, "--name", folder.name)


def written(folder):
    """How far a run is, in bytes: all logs but those that grow with each process."""
    return sum(p.stat().st_size for p in folder.glob("*.log") if p.stem not in ("events", "spent"))


def killed(recipe, folder, moments, rng):
    """A run that is killed soon after it has written so much, each time, and goes on: its last process."""
    command = run(recipe, folder)
    for size in sorted(moments):
        while command.process.is_alive() and written(folder) < size:
            time.sleep(0.002)
        time.sleep(rng.choice([0.0, 0.01, 0.1, 0.5]))
        command.kill()
        command = run(recipe, folder)
    return command


def _main(words, errors):
    import torch

    from temper import cli

    torch.set_num_threads(1)
    for stream, path in ((1, os.devnull), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    sys.argv = ["temper", *words]
    cli.main()
