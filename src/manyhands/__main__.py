"""`python -m manyhands` is the `manyhands` command."""

from manyhands.cli import program

program()
