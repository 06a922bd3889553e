"""What the server of `drive` imports, once for all runs."""

import matplotlib.pyplot
import transformers

import temper.cli.run
import temper.runs.workshop

__all__ = ["matplotlib", "temper", "transformers"]
