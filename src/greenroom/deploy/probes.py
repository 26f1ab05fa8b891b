"""The inputs and outputs recorded at evaluation, asked again of a version before it has traffic.

Pure but for reading the file. Called by `rollout`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenroom.errors import DeployError


@dataclass(frozen=True)
class Probes:
    """probes.json of a model folder."""

    instances: tuple[Any, ...]
    expected: tuple[Mapping[str, Any], ...]  # {"label", "scores"} each
    tolerance: float  # of every score


def read(folder: Path, which: str) -> Probes | None:
    """The probes of the model folder of version `which`; None where it was never evaluated.

    Raises `DeployError` for a file that holds none.
    """
    file = folder / "probes.json"
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        expected = tuple(_expected(row) for row in table["probes"])
        instances = tuple(row["instance"] for row in table["probes"])
        return Probes(instances, expected, float(table["tolerance"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeployError(
            f"{which}: {file} holds no probes ({type(error).__name__}: {error}); "
            "evaluate the version again: greenroom run evaluate"
        ) from error


def _expected(row: Mapping[str, Any]) -> Mapping[str, Any]:
    scores = {label: float(score) for label, score in row["scores"].items()}
    return {"label": row["label"], "scores": scores}


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
