"""The benchmarks' one line of JSON, on a run too small to say anything about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import processkit

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ("samples_per_s", "seconds", "cpu_seconds", "accuracy")


@pytest.mark.slow
def test_finetuning_prints_one_line_of_the_agreed_form(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "finetuning.py"),
            *("--json", "--runs", "1", "--rows", "32", "--epochs", "1"),
        ],
        cwd=tmp_path,
        env=processkit.env(GREENROOM_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert set(result) == {"benchmark", "ratio", "ours", "opponents", "versions", "runs"}
    assert (result["benchmark"], result["runs"]) == ("finetuning", 1)
    assert set(result["opponents"]) == {"example", "best"}
    for side in (result["ours"], *result["opponents"].values()):
        assert set(side["spread"]) == set(FIGURES)
        for name in FIGURES:
            spread = side["spread"][name]
            assert spread["min"] <= side[name] == spread["median"] <= spread["max"]
    best = result["opponents"]["best"]
    ratio = result["ours"]["samples_per_s"] / best["samples_per_s"]
    assert result["ratio"] == pytest.approx(ratio)
