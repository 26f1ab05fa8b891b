"""Searches the experiment's hyperparameters; every trial is a nested run.

python entrypoints/tune.py [--experiment FILE] [--hardware NAME] [--training.epochs 2 ...]
"""

import os
import sys

# The working folder in place of this one: its evaluate.py would stand in for the library evaluate.
sys.path[0] = os.getcwd()

from greenroom.steps import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main("tune", sys.argv[1:]))
