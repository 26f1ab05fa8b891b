"""A trained module -> the folder that the scorer loads. The only place that traces TorchScript.

Called by `steps.train` and by trials that keep their artifacts. torch calls `torch.jit` deprecated;
when it goes, this file and `serving.scorer`'s load are all that changes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from greenroom.errors import ParityError

FORMAT = 1
MODULE, TOKENIZER, META, CARD, PROBES = (
    "module.pt",
    "tokenizer.json",
    "greenroom.json",
    "README.md",
    "probes.json",
)
# Traced and eager run the same kernels; what differs is the order of some sums.
PARITY_LIMIT = 1e-4
_BATCHES = (1, 2, 5)


@dataclass(frozen=True)
class Parity:
    """How far the traced module is from the eager one, and on which inputs that was measured."""

    max_difference: float  # of any logit
    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...]


def trace(model: nn.Module, keys: Sequence[str], vocab_size: int, max_length: int) -> Any:
    """`model` as a TorchScript module for the CPU; its inputs are `keys`, in forward's order.

    Traced on two rows of different lengths, so that no branch on "nothing is padded" is baked in.
    check_trace is off: `parity` checks on more shapes and with a limit of its own.
    """
    model = model.to("cpu").eval()
    inputs = _inputs(keys, vocab_size, 2, min(7, max_length), seed=0)
    with torch.no_grad(), _quiet():
        return torch.jit.trace(model, inputs, strict=False, check_trace=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tracing reads every attribute of the module, the deprecated ones that transformers warns
    about too, and compares shapes in Python; `parity` shows that this is harmless."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def parity(
    traced: Any, eager: nn.Module, keys: Sequence[str], vocab_size: int, max_length: int
) -> Parity:
    """Compares both over batch sizes 1 to 5 and lengths from 1 to the limit, padded and not.

    Raises `ParityError` when any logit differs by more than 1e-4, or is not finite.
    """
    lengths = tuple(sorted({1, 2, 3, 8, max_length // 2, max_length - 1, max_length} - {0}))
    worst = 0.0
    for seed, (batch, length) in enumerate((b, n) for b in _BATCHES for n in lengths):
        inputs = _inputs(keys, vocab_size, batch, length, seed)
        with torch.no_grad():
            difference = (traced(*inputs) - eager(*inputs)).abs().max().item()
        if not difference <= PARITY_LIMIT:  # NaN is not
            raise ParityError(
                f"the traced module differs from the eager one by {difference:g} (limit "
                f"{PARITY_LIMIT:g}) on a batch of {batch} x {length} tokens. Its forward() "
                "probably branches on the values or shapes of its inputs; make it branch-free, or "
                "use attn_implementation='eager'"
            )
        worst = max(worst, difference)
    return Parity(worst, _BATCHES, lengths)


def _inputs(
    keys: Sequence[str], vocab_size: int, batch: int, length: int, seed: int
) -> tuple[torch.Tensor, ...]:
    """Random token ids; every second row is padded from the middle on."""
    generator = torch.Generator().manual_seed(seed)
    made = {
        "input_ids": torch.randint(0, vocab_size, (batch, length), generator=generator),
        "attention_mask": torch.ones(batch, length, dtype=torch.int64),
        "token_type_ids": torch.zeros(batch, length, dtype=torch.int64),
    }
    made["attention_mask"][1::2, (length + 1) // 2 :] = 0
    return tuple(made[key] for key in keys)


def write_folder(
    folder: Path, traced: Any, tokenizer: Path, meta: Mapping[str, Any], card: str
) -> Path:
    """The scorer's folder: module, tokenizer with its limits, meta data and model card."""
    folder.mkdir(parents=True)
    with _quiet():
        torch.jit.save(traced, str(folder / MODULE))
    shutil.copyfile(tokenizer, folder / TOKENIZER)
    text = json.dumps({"format": FORMAT, **meta}, ensure_ascii=False, indent=2)
    (folder / META).write_text(text + "\n", encoding="utf-8")
    (folder / CARD).write_text(card, encoding="utf-8")
    return folder


def requirements() -> list[str]:
    """What the scorer needs, as pins that an index can serve: no `+cpu` local versions."""
    pins = []
    for package in ("torch", "tokenizers", "numpy", "pandas"):
        version = importlib.metadata.version(package).partition("+")[0]
        pins.append(f"{package}=={version}")
    return pins
