"""Which examples make up which batch, and how a batch becomes tensors.

The plan of an epoch is a pure function of the lengths, the seed and the epoch, so that a resumed
run sees the batches that the killed one would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import Dataset

# Batches are cut from windows of this many, sorted by length: on the demo's questions padding falls
# from 40% of the tokens to 1%, while what is in a window stays random.
WINDOW = 50
# Accelerators that compile for every shape get lengths rounded up to a multiple of this.
COMPILED_MULTIPLE = 32

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatch:
    """The examples of one forward pass; a weight of 0 marks one that only fills up."""

    indices: Indices  # [b]
    weights: npt.NDArray[np.float32]  # [b], 0 or 1
    total: float  # the weights' sum over the whole global batch


def epoch_plan(
    lengths: Indices, batch_size: int, parts: int, seed: int, epoch: int
) -> list[list[MicroBatch]]:
    """The global batches of an epoch, each cut into `parts` micro-batches of one size.

    lengths: [N] tokens of each example. Batches hold examples of similar lengths and come in
    random order; every example is in exactly one of them with weight 1.
    """
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(lengths))
    window = batch_size * WINDOW
    batches: list[Indices] = []
    for start in range(0, len(order), window):
        part = order[start : start + window]
        part = part[np.argsort(-lengths[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    return [_cut(batches[i], parts) for i in rng.permutation(len(batches))]


def _cut(batch: Indices, parts: int) -> list[MicroBatch]:
    size = -(-len(batch) // parts)
    filled = np.resize(batch, size * parts)
    weights = np.zeros(size * parts, np.float32)
    weights[: len(batch)] = 1.0
    return [
        MicroBatch(filled[i : i + size], weights[i : i + size], float(len(batch)))
        for i in range(0, size * parts, size)
    ]


@dataclass(frozen=True)
class Encoded:
    """One split in memory: token ids of all examples end to end, and the labels."""

    tokens: npt.NDArray[np.int32]  # [sum of lengths]
    offsets: Indices  # [N + 1]
    labels: Indices  # [N]

    @classmethod
    def from_table(cls, *tables: pa.Table) -> Encoded:
        """The rows of snapshot splits (columns input_ids, label), one table after the other."""
        ids = pa.concat_arrays(
            [c.cast(pa.list_(pa.int32())) for t in tables for c in t["input_ids"].chunks]
        )
        lengths = ids.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        labels = np.concatenate([t["label"].to_numpy().astype(np.int64) for t in tables])
        return cls(
            ids.flatten().to_numpy(zero_copy_only=False),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            labels,
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Indices:
        """[N] tokens of each example."""
        return np.diff(self.offsets)

    def renumbered(self, new_ids: npt.NDArray[np.int64]) -> Encoded:
        """The same examples with token `t` written as `new_ids[t]`."""
        return Encoded(new_ids[self.tokens].astype(np.int32), self.offsets, self.labels)

    def batch(
        self, indices: Indices, pad_id: int, multiple: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(input_ids [B, T], attention_mask [B, T], labels [B]), padded to the longest.

        T is rounded up to a multiple of `multiple`.
        """
        lengths = self.offsets[indices + 1] - self.offsets[indices]
        width = -(-int(lengths.max()) // multiple) * multiple
        mask = np.arange(width) < lengths[:, None]
        ids = np.full(mask.shape, pad_id, np.int64)
        ids[mask] = np.concatenate(
            [self.tokens[self.offsets[i] : self.offsets[i + 1]] for i in indices]
        )
        return (
            torch.from_numpy(ids),
            torch.from_numpy(mask.astype(np.int64)),
            torch.from_numpy(self.labels[indices]),
        )


class TrainingBatches(Dataset[dict[str, torch.Tensor]]):
    """A process's micro-batches of one epoch, ready for a DataLoader with `batch_size=None`."""

    def __init__(
        self, data: Encoded, plan: Sequence[MicroBatch], pad_id: int, multiple: int
    ) -> None:
        self.data, self.plan, self.pad_id, self.multiple = data, plan, pad_id, multiple

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        micro = self.plan[i]
        ids, mask, labels = self.data.batch(micro.indices, self.pad_id, self.multiple)
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": labels,
            "weights": torch.from_numpy(micro.weights / micro.total),
        }
