"""An experiment file and its overrides -> `specs.Experiment`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greenroom import specs
from greenroom.config.tables import conditions, put, read_toml, section
from greenroom.errors import ConfigError, nearest
from greenroom.fields import (
    Check,
    Override,
    above,
    at_least,
    between,
    build,
    not_empty,
    one_of,
    scalar,
)
from greenroom.space import parse_parameter

DEFAULT_EXPERIMENT = "experiments/question-types.toml"
BUILT_IN_TASKS = ("classification",)
FORMATS = ("auto", "csv", "tsv", "jsonl", "parquet", "trec", "hub")

_NOT_SEARCHED = {
    "objective": "it is what trials are compared by",
    "use_validation": "trials are compared on the validation split",
}

# Seeds feed numpy's and torch's generators, which take 32 unsigned bits alike.
_SEED = between(0, 2**32)

CHECKS: Mapping[str, Mapping[str, Check]] = {
    "data": {
        "source": not_empty,
        "format": one_of(*FORMATS),
        "text": not_empty,
        "label": not_empty,
        "validation_fraction": between(0, 1),
        "test_fraction": between(0, 1),
        "max_length": at_least(3),  # one token between [CLS] and [SEP]
        "seed": _SEED,
        "splits": lambda v: "column: names no column; write column:NAME" if v == "column:" else "",
    },
    "training": {
        "epochs": at_least(1),
        "max_steps": at_least(0),
        "learning_rate": above(0),
        "batch_size": at_least(1),
        "micro_batch_size": at_least(0),
        "warmup_fraction": between(0, 1),
        "weight_decay": at_least(0),
        "max_grad_norm": at_least(0),
        "objective": one_of("f1_macro", "f1_weighted", "accuracy", "loss"),
        "patience": at_least(0),
        "precision": one_of("auto", "fp32", "bf16", "fp16"),
        "seed": _SEED,
    },
    "tuning": {
        "engine": one_of("hyperopt"),
        "max_trials": at_least(1),
        "seed": _SEED,
        "keep_artifacts": one_of("best", "all"),
    },
}


def load_experiment(
    path: str | Path | None = None, overrides: Mapping[str, str] | None = None
) -> specs.Experiment:
    """The experiment of the file at `path`, with dotted `overrides` on top.

    Without a path: experiments/question-types.toml of the working folder.
    """
    table = read_toml(Path(path or DEFAULT_EXPERIMENT))
    for key, text in (overrides or {}).items():
        put(table, key.split("."), Override(text), key)
    return _experiment(table)


def _experiment(table: Mapping[str, Any]) -> specs.Experiment:
    problems: list[str] = []
    sections = {
        s: section(table, s, problems) for s in ("data", "training", "tuning", "evaluation")
    }
    training = build(
        specs.TrainingSpec, sections["training"], "training", CHECKS["training"], problems
    )
    space = _space(sections["tuning"].get("space", {}), problems)
    gate = conditions(sections["evaluation"].get("gate", {}), "evaluation.gate", problems)
    experiment = build(
        specs.Experiment,
        table,
        "",
        {"name": _name_problem, "task": _task_problem},
        problems,
        skip=("models", *sections),
        models=_models(table.get("models"), problems),
        data=build(
            specs.DataSpec,
            {**sections["data"], **_splits(sections["data"])},
            "data",
            CHECKS["data"],
            problems,
        ),
        training=training,
        tuning=build(
            specs.TuningSpec,
            sections["tuning"],
            "tuning",
            CHECKS["tuning"],
            problems,
            skip=("space",),
            space=space,
        ),
        evaluation=build(
            specs.EvaluationSpec,
            sections["evaluation"],
            "evaluation",
            {},
            problems,
            skip=("gate",),
            gate=gate,
        ),
    )
    problems += _together(experiment)
    if problems:
        raise ConfigError(problems)
    return experiment


def _together(experiment: specs.Experiment) -> list[str]:
    """Complaints about values that are fine alone but not with each other."""
    data, training = experiment.data, experiment.training
    problems = []
    if data.validation_fraction + data.test_fraction >= 1:
        problems.append(
            "data.validation_fraction + data.test_fraction: "
            f"{data.validation_fraction + data.test_fraction:g} leaves nothing to train on"
        )
    if training.micro_batch_size > training.batch_size:
        problems.append(
            f"training.micro_batch_size: {training.micro_batch_size} is more than "
            f"training.batch_size = {training.batch_size}"
        )
    return problems


def _splits(data: Mapping[str, Any]) -> dict[str, str]:
    """A TOML table of split -> file in the one text form that the spec holds."""
    splits = data.get("splits")
    if not isinstance(splits, Mapping):
        return {}
    return {"splits": ",".join(f"{name}={source}" for name, source in splits.items())}


def _models(raw: Any, problems: list[str]) -> tuple[str, ...]:
    if raw is None:
        return specs.Experiment.models
    items = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(items, list) or not all(isinstance(m, str) for m in items):
        problems.append(f"models: {raw!r} is not a list of model names")
        return specs.Experiment.models
    models = tuple(str(m).strip() for m in items)
    if not models or not all(models):
        problems.append("models: must name at least one model, none of them empty")
    if len(set(models)) < len(models):
        problems.append("models: names one model twice")
    return models


def _name_problem(name: str) -> str:
    if not name.strip():
        return "must not be empty"
    # MLflow allows 256 characters in a registered model's name; escapes take up to 9 for one.
    return "" if len(name) <= 100 else f"has {len(name)} characters; 100 are allowed"


def _task_problem(task: str) -> str:
    if task in BUILT_IN_TASKS or re.fullmatch(r"[\w.]+:\w+", task):
        return ""
    return f'unknown task {task!r}; {nearest(task, BUILT_IN_TASKS)}, or "package.module:TASK"'


def _space(raw: Any, problems: list[str]) -> tuple[specs.Parameter, ...]:
    if not isinstance(raw, Mapping):
        problems.append(f"tuning.space: must be a table, not {raw!r}")
        return ()
    hints = specs.TrainingSpec.__annotations__
    space = []
    for name, text in raw.items():
        where = f"tuning.space.{name}"
        if name not in hints:
            problems.append(f"{where}: unknown [training] key; {nearest(name, hints)}")
            continue
        if name in _NOT_SEARCHED:
            problems.append(f"{where}: cannot be searched: {_NOT_SEARCHED[name]}")
            continue
        try:
            if not isinstance(text, str):
                raise ConfigError(f"{text!r} is not a text such as '1e-5->5e-4 log' or '16,32'")
            parameter = parse_parameter(name, str(text))
            _check_fits_key(parameter)
        except ConfigError as error:
            problems += [f"{where}: {problem}" for problem in error.problems]
        else:
            space.append(parameter)
    return tuple(space)


def _check_fits_key(parameter: specs.Parameter) -> None:
    """Every value that the search can draw must be one that the key itself would take."""
    kinds: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
    kind = kinds[specs.TrainingSpec.__annotations__[parameter.name]]
    if parameter.kind == "interval":
        if kind not in (int, float):
            raise ConfigError(
                f"an interval needs a numeric key; {parameter.name} is {kind.__name__}"
            )
        if kind is int and not parameter.integer:
            raise ConfigError(f"{parameter.name} is a whole number: write both ends as integers")
        values: Sequence[Any] = [kind(parameter.low), kind(parameter.high)]
    else:
        values = parameter.values
    check = CHECKS["training"].get(parameter.name)
    for value in values:
        typed, complaint = scalar(value, kind)
        complaint = complaint or (check(typed) if check else "")
        if complaint:
            raise ConfigError(complaint)
