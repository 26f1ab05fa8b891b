"""`python -m greenroom.cli`."""

from greenroom.cli import main

main()
