"""What a task is, and the table of tasks. Called by `data`, `training` and `tuning`.

A task is five functions. The built-in ones are written no differently from a user's, which an
experiment names as `task = "package.module:TASK"`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from greenroom.errors import ConfigError, nearest
from greenroom.specs import DataSpec

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import tokenizers
    import torch

    from greenroom.models import ModelSource

TASKS: Mapping[str, str] = {"classification": "greenroom.tasks.classification:TASK"}


@dataclass(frozen=True)
class Examples:
    """Clean examples: no empty ones, every text once, all in one table.

    `table` has `text` and `label` (strings: the label's text), and where they apply `id` (the row
    in the source), `group` and `split` (train, validation or test); other columns are kept.
    """

    table: pa.Table
    notes: tuple[str, ...] = ()  # what a reader of the results should know
    counts: Mapping[str, int] = field(default_factory=dict)  # rows read, dropped for each reason


LoadExamples = Callable[[DataSpec], Examples]
Encode = Callable[[Mapping[str, list[Any]], "tokenizers.Tokenizer"], Mapping[str, list[Any]]]
LoadModel = Callable[["ModelSource", tuple[str, ...], int, int], "torch.nn.Module"]
InputKeys = Callable[[], tuple[str, ...]]
ComputeMetrics = Callable[["np.ndarray", "np.ndarray", tuple[str, ...]], dict[str, float]]


@dataclass(frozen=True)
class Task:
    """The five functions that make a kind of work, and its name.

    load_examples(spec)
        Collects and cleans the data (the reconciliation step).
    encode(columns, tokenizer)
        A batch of columns -> at least `input_ids`, a list of token ids for each example, and best
        also `truncated`, whether it was cut; further lists of whole numbers are kept by their
        names. The limit is set in the tokenizer; nothing is padded.
    load_model(source, labels, vocab_size, seed)
        A float32 module on the CPU whose forward takes the `input_keys` in their order, each
        [B, T], and returns logits [B, C]. New weights depend on `seed` alone.
    input_keys()
        The names of forward's inputs, in its order, which TorchScript needs.
    compute_metrics(predictions, references, labels)
        Two arrays [N] of label indices -> the metrics by name.
    """

    name: str
    load_examples: LoadExamples
    encode: Encode
    load_model: LoadModel
    input_keys: InputKeys
    compute_metrics: ComputeMetrics


def load_task(name: str) -> Task:
    """The task of that name, or of `package.module:ATTRIBUTE`; `ConfigError` says what is wrong."""
    target = TASKS.get(name, name)
    module_name, colon, attribute = target.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(
            f'task: unknown task {name!r}; {nearest(name, TASKS)}, or "package.module:TASK"'
        )
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        raise ConfigError(
            f"task: {name!r} cannot be imported: {type(error).__name__}: {error}; its package must "
            "be installed or lie in a folder of PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        tasks = [key for key, value in vars(module).items() if isinstance(value, Task)]
        raise ConfigError(
            f"task: {module_name} has no {attribute!r}; {nearest(attribute, tasks)} (objects of "
            "type greenroom.tasks.Task)"
        )
    return _checked(getattr(module, attribute), name)


def _checked(task: Any, name: str) -> Task:
    if not isinstance(task, Task):
        raise ConfigError(
            f"task: {name!r} is of type {type(task).__name__}; it must be a greenroom.tasks.Task"
        )
    functions = ("load_examples", "encode", "load_model", "input_keys", "compute_metrics")
    wrong = [f for f in functions if not callable(getattr(task, f))]
    if wrong:
        raise ConfigError([f"task: {name!r}: {f} is not a function" for f in wrong])
    return task
