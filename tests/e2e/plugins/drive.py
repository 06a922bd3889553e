"""A run in a process of its own that begins with everything imported, so that it can be killed often."""

import asyncio
import multiprocessing

import torch

from temper.runs import driver, recipe

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["plugins.drive", "matplotlib.pyplot", "transformers"])


def start(file, folder):
    """The process of a new run of the recipe, or of one that goes on with it."""
    process = CONTEXT.Process(target=_go, args=(file, folder))
    process.start()
    return process


def _go(file, folder):
    torch.set_num_threads(1)
    begun = (folder / "recipe.json").exists()
    asyncio.run(driver.resume(folder, [], []) if begun else driver.start(recipe.load(str(file)), folder, []))
