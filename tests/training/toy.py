"""A tiny BERT and token ids that it can learn, for tests of the training loop."""

from __future__ import annotations

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from greenroom.specs import Profile, TrainingSpec
from greenroom.tasks.sequence_classifier import SequenceClassifier
from greenroom.training import loop
from greenroom.training.batches import Encoded

VOCABULARY, CLASSES = 60, 3
CPU = Profile("cpu", accelerator="cpu")


def model(seed: int = 0, dropout: float = 0.1) -> SequenceClassifier:
    """2 layers of 16; the same weights for the same seed."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=CLASSES,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return SequenceClassifier(BertForSequenceClassification(config).eval())


def examples(count: int, seed: int = 0, vocabulary: int = 30) -> Encoded:
    """Random ids of 2 to 12 tokens below `vocabulary`; the first one decides the label."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 13, count)
    tokens = rng.integers(1, vocabulary, lengths.sum()).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    labels = tokens[offsets[:-1]].astype(np.int64) % CLASSES
    return Encoded(tokens, offsets, labels)


def job(spec: TrainingSpec, *, dropout: float = 0.1, validation: int = 40) -> loop.Job:
    """Training of the tiny model on 100 examples."""
    return loop.Job(
        model=model(dropout=dropout),
        train=examples(100, 1),
        validation=examples(validation, 2) if validation else None,
        spec=spec,
        profile=CPU,
        pad_id=0,
        compute_metrics=lambda p, r: {"accuracy": float((p == r).mean()), "f1_macro": 0.5},
    )


def weights(job: loop.Job) -> dict[str, torch.Tensor]:
    """A copy of the model's weights."""
    return {key: value.clone() for key, value in job.model.state_dict().items()}
