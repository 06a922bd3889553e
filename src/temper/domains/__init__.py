"""The catalogue of tasks: one module a family, each with a stream of tasks, its world, its grader and its gold answers."""
