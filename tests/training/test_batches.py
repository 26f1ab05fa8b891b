"""Batch plans: every example once, similar lengths together, the same again for the same seed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

from greenroom.training.batches import Encoded, TrainingBatches, epoch_plan

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=300)


@given(LENGTHS, st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_every_example_counts_exactly_once(
    lengths: list[int], batch_size: int, parts: int, seed: int
) -> None:
    plan = epoch_plan(np.array(lengths), batch_size, parts, seed, epoch=3)
    counted = [
        int(i)
        for batch in plan
        for micro in batch
        for i, weight in zip(micro.indices, micro.weights, strict=True)
        if weight
    ]
    assert sorted(counted) == list(range(len(lengths)))
    for batch in plan:
        total = sum(float(micro.weights.sum()) for micro in batch)
        assert len(batch) == parts
        assert total <= batch_size
        assert {micro.total for micro in batch} == {total}


@given(LENGTHS, st.integers(0, 1000), st.integers(0, 5))
def test_a_plan_is_a_function_of_seed_and_epoch(lengths: list[int], seed: int, epoch: int) -> None:
    one, two = (epoch_plan(np.array(lengths), 8, 2, seed, epoch) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.indices.tolist() == y.indices.tolist()


def test_epochs_and_seeds_differ() -> None:
    lengths = np.arange(1, 200)
    plans = [epoch_plan(lengths, 8, 1, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    orders = {tuple(np.concatenate([m.indices for b in p for m in b])) for p in plans}
    assert len(orders) == 3


def test_batches_of_similar_lengths_leave_little_to_pad() -> None:
    lengths = np.random.default_rng(0).integers(4, 40, 2000)
    plan = epoch_plan(lengths, 32, 1, 0, 0)
    padded = sum(len(m.indices) * lengths[m.indices].max() for b in plan for m in b)
    assert padded < 1.1 * lengths.sum()


def test_a_table_becomes_padded_tensors() -> None:
    ids = [[5, 6], [7], [8, 9, 10]]
    table = pa.table(
        {
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "label": pa.array([2, 0, 1], pa.int32()),
        }
    )
    data = Encoded.from_table(table.slice(0, 2), table.slice(2))
    tokens, mask, labels = data.batch(np.array([2, 1]), pad_id=3)
    assert tokens.tolist() == [[8, 9, 10], [7, 3, 3]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert labels.tolist() == [1, 0]
    assert data.batch(np.array([1]), 0, multiple=8)[0].shape == (1, 8)


def test_weights_of_a_micro_batch_sum_to_its_share() -> None:
    data = Encoded(np.zeros(10, np.int32), np.arange(11), np.zeros(10, np.int64))
    plan = epoch_plan(data.lengths, 10, 3, 0, 0)
    micro = [item for batch in plan for item in batch]
    batches = TrainingBatches(data, micro, 0, 1)
    shares = [batches[i]["weights"].sum().item() for i in range(len(batches))]
    assert torch.tensor(shares).sum().item() == torch.tensor(1.0)
    assert [len(m.indices) for m in micro] == [4, 4, 4]
