"""How good a model is: runs held-out tasks, counts with intervals, compares, and writes the report. No torch."""
