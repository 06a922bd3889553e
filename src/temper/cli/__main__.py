"""`python -m temper.cli`, where the `temper` command is not on the path."""

from temper.cli import main

main()
