"""The loop that deploys what is promoted: `greenroom watch` as a program of its own.

    python registry/controller.py [--interval 5] [--once] [--deployments FILE]

It is here beside deployments.toml for a supervisor (systemd, a container) to run; all it does is
in greenroom.deploy.controller.
"""

from __future__ import annotations

import sys

from greenroom.cli import main

if __name__ == "__main__":
    main(["watch", *sys.argv[1:]])
