"""`python -m mixlab` is the command line."""

from mixlab.cli import main

main()
