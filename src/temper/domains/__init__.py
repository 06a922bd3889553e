"""The catalogue of tasks: one module a family, with its stream of tasks, world, grader and gold answers."""
