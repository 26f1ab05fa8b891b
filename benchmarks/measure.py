"""What the benchmarks share: sides that take turns, figures with their spread, one line of JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Figures = Mapping[str, float]


def interleaved(
    script: Path, sides: Sequence[str], arguments: Sequence[str], runs: int
) -> dict[str, list[Figures]]:
    """The figures of `script --side NAME` for each side, `runs` times, the sides taking turns.

    Every run is a process of its own: no side finds what another has loaded, warmed up or set.
    The order turns round from one repeat to the next, so that a slow minute hits all alike.
    """
    found: dict[str, list[Figures]] = {side: [] for side in sides}
    for i in range(runs):
        for side in sides if i % 2 == 0 else reversed(sides):
            command = [sys.executable, str(script), "--side", side, *arguments]
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
            if done.returncode:
                raise SystemExit(f"{side} ended with exit code {done.returncode}")
            figures = json.loads(done.stdout.splitlines()[-1])
            print(f"{i + 1}/{runs} {side}: {figures}", file=sys.stderr)
            found[side].append(figures)
    return found


def summary(rows: Sequence[Figures]) -> dict[str, object]:
    """The median of each figure, and its median, min and max under "spread"."""
    spread = {
        key: {
            "median": statistics.median(row[key] for row in rows),
            "min": min(row[key] for row in rows),
            "max": max(row[key] for row in rows),
        }
        for key in rows[0]
    }
    return {**{key: value["median"] for key, value in spread.items()}, "spread": spread}


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures], key: str) -> dict[str, float]:
    """How many times theirs ours is, in each repeat: median, min and max."""
    values = [mine[key] / other[key] for mine, other in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python and of some packages."""
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
