"""A model's answers on a split, all processes together. Called by `loop` for validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from greenroom.training.batches import Encoded

VALIDATION_BATCH = 64


def validation_loader(
    data: Encoded, pad_id: int, multiple: int
) -> DataLoader[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """A split in batches of similar lengths; prepared, it is shared out over the processes."""
    order = np.argsort(-data.lengths, kind="stable").tolist()
    return DataLoader(
        order,
        batch_size=VALIDATION_BATCH,
        collate_fn=lambda indices: data.batch(np.array(indices), pad_id, multiple),
        generator=torch.Generator(),
    )


def predict(
    accelerator: Accelerator,
    model: nn.Module,
    loader: DataLoader[Any],
    input_keys: Sequence[str] = ("input_ids", "attention_mask"),
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], float]:
    """(predicted labels [N], true labels [N], mean loss) over a prepared loader of all processes.

    gather_for_metrics leaves out the examples that filled up the last batches.
    """
    model.eval()
    predictions: list[torch.Tensor] = []
    references: list[torch.Tensor] = []
    losses: list[torch.Tensor] = []
    with torch.no_grad():
        for ids, mask, labels in loader:
            inputs = forward_inputs(input_keys, {"input_ids": ids, "attention_mask": mask})
            logits = model(*inputs).float()
            loss = cross_entropy(logits, labels, reduction="none")
            found = accelerator.gather_for_metrics((logits.argmax(-1), labels, loss))
            for kept, new in zip((predictions, references, losses), found, strict=True):
                kept.append(new.cpu())
    return (
        torch.cat(predictions).numpy(),
        torch.cat(references).numpy(),
        float(torch.cat(losses).double().mean()),
    )


def forward_inputs(
    keys: Sequence[str], batch: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """forward()'s inputs in its order; a key that is not in the batch is one of segment zeros."""
    zeros = torch.zeros_like(batch["input_ids"])
    return tuple(batch.get(key, zeros) for key in keys)
