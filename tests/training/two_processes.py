"""Trains the tiny model as one of torchrun's processes; the first one saves its weights.

Started by test_processes: `torchrun ... two_processes.py OUTPUT CHECKPOINTS`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.training import toy
from tests.training.test_processes import SPEC

from greenroom.training import loop

if __name__ == "__main__":
    job = toy.job(SPEC, dropout=0.0)
    outcome = loop.train(job, Path(sys.argv[2]))
    if torch.distributed.get_rank() == 0:
        torch.save({"weights": toy.weights(job), "history": outcome.history}, sys.argv[1])
    torch.distributed.destroy_process_group()
