"""The inputs and outputs recorded at evaluation, asked again of a version before it has traffic.

Pure but for reading the file. Called by `rollout`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Probes:
    """probes.json of a model folder."""

    instances: tuple[Any, ...]
    expected: tuple[Mapping[str, Any], ...]  # {"label", "scores"} each
    tolerance: float  # of every score


def read(folder: Path) -> Probes | None:
    """The probes of a model folder; None for a version that was never evaluated."""
    try:
        table = json.loads((folder / "probes.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    rows = table["probes"]
    return Probes(tuple(row["instance"] for row in rows), tuple(rows), float(table["tolerance"]))


def compare(probes: Probes, answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """What differs from evaluation, a line for each probe; [] when nothing does."""
    if len(answers) != len(probes.expected):
        return [f"{len(answers)} predictions for {len(probes.expected)} probes"]
    problems = []
    for i, (expected, answer) in enumerate(zip(probes.expected, answers, strict=True)):
        if answer.get("label") != expected["label"]:
            problems.append(f"probe {i}: {answer.get('label')!r}, not {expected['label']!r}")
            continue
        scores = answer.get("scores", {})
        gap = max(
            (_gap(scores.get(label), value) for label, value in expected["scores"].items()),
            default=0.0,
        )
        if not gap <= probes.tolerance:
            problems.append(f"probe {i}: a score differs by {gap:.2g}, over {probes.tolerance:g}")
    return problems


def _gap(score: Any, expected: float) -> float:
    return abs(score - expected) if isinstance(score, (int, float)) else float("inf")
