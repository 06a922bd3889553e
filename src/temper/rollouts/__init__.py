"""Episodes: task x model x sandbox -> trace. Toolsets, environments, and the multi-turn loop."""
