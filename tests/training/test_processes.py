"""Two processes train what one process trains: same batches, same gradient, same metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from greenroom.specs import TrainingSpec
from greenroom.training import loop

from . import toy

# 100 examples in batches of 16: the last has 4, fewer than its 8 micro-batches.
SPEC = TrainingSpec(
    epochs=2,
    batch_size=16,
    micro_batch_size=2,
    learning_rate=1e-2,
    precision="fp32",
    objective="accuracy",
)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    alone = toy.job(SPEC, dropout=0.0)
    expected = loop.train(alone)
    script, output = Path(__file__).with_name("two_processes.py"), tmp_path / "weights.pt"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(script), str(output), str(tmp_path / "checkpoints")),
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(output, weights_only=True)
    for key, value in toy.weights(alone).items():
        assert (value - found["weights"][key]).abs().max().item() < 1e-4, key
    for one, other in zip(expected.history, found["history"], strict=True):
        assert other == pytest.approx(one, rel=1e-3)
