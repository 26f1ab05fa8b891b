"""Checkpoints that survive a kill at any moment.

A checkpoint is a folder written under another name and renamed when whole, so that there is always
either the older or the newer one. Called by `loop`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

_PREFIX = "step-"


@dataclass(frozen=True)
class Progress:
    """Where training is: what a resumed run needs beside weights, optimiser and random states."""

    epoch: int = 0  # epochs finished
    batch: int = 0  # optimiser steps done of the epoch in work
    step: int = 0  # optimiser steps done in all
    loss_sum: float = 0.0  # of the epoch in work: sum of the steps' mean losses
    decay: float = 1.0  # product of (1 - lr x weight decay) so far
    best_epoch: int = 0  # 0: none yet
    best_value: float = 0.0
    best_decay: float = 1.0
    history: tuple[Mapping[str, float], ...] = ()  # one row of metrics for each finished epoch


def save(accelerator: Accelerator, folder: Path, progress: Progress, scheduler: Any) -> Path:
    """Writes a checkpoint below `folder` and removes the older ones; every process calls it."""
    final = folder / f"{_PREFIX}{progress.step:09d}"
    partial = folder / f"partial-{progress.step:09d}"
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    if accelerator.is_main_process:
        torch.save(scheduler.state_dict(), partial / "schedule.pt")
        text = json.dumps({**vars(progress), "history": list(progress.history)})
        (partial / "progress.json").write_text(text, encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for old in folder.glob(f"{_PREFIX}*"):
            if old != final:
                shutil.rmtree(old)
        for old_best in folder.glob("best-*.pt"):
            if old_best.name != best_name(progress.best_epoch):
                old_best.unlink()
    accelerator.wait_for_everyone()
    return final


def load(accelerator: Accelerator, folder: Path, scheduler: Any) -> Progress | None:
    """Continues from the newest checkpoint below `folder`; None where there is none."""
    found = sorted(folder.glob(f"{_PREFIX}*"))
    if not found:
        return None
    accelerator.load_state(str(found[-1]))
    scheduler.load_state_dict(torch.load(found[-1] / "schedule.pt", weights_only=True))
    values = json.loads((found[-1] / "progress.json").read_text(encoding="utf-8"))
    return Progress(**{**values, "history": tuple(values["history"])})


def best_name(epoch: int) -> str:
    """The file of the best weights so far, beside the checkpoints."""
    return f"best-{epoch:04d}.pt"


def save_best(folder: Path, epoch: int, state: Mapping[str, torch.Tensor]) -> None:
    """Writes the weights of the best epoch; the next checkpoint removes the former best."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "best.partial"
    torch.save(dict(state), partial)
    partial.rename(folder / best_name(epoch))


def remove(folder: Path) -> None:
    """Forgets a finished training's checkpoints.

    Renamed first: half a checkpoint that a kill left would be loaded by the next training.
    """
    for gone in folder.parent.glob(f"{folder.name}.gone*"):
        shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        gone = folder.with_name(f"{folder.name}.gone")
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
