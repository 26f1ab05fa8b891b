"""Experiment, hardware and deployment files and -P overrides -> the values of `specs`.

The only module that turns a user's strings into specs. Every function either returns checked
values or raises one `ConfigError` that lists all problems, each with the valid choices.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greenroom import specs
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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_EXPERIMENT = "experiments/question-types.toml"
BUILT_IN_TASKS = ("classification",)
PLACES = ("local",)
TARGETS = ("local",)
STAGES = ("Staging", "Production")
STRATEGIES = ("all-at-once", "blue-green")
FORMATS = ("auto", "csv", "tsv", "jsonl", "parquet", "trec", "hub")

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
    "profile": {
        "place": one_of(*PLACES),
        "accelerator": one_of("", "cpu", "gpu", "hpu"),
        "threads": at_least(0),
    },
    "deployment": {
        "name": not_empty,
        "model": not_empty,
        "stage": one_of(*STAGES),
        "target": one_of(*TARGETS),
        "port": between(0, 65536),
        "workers": at_least(1),
        "threads": at_least(0),
    },
    "rollout": {"strategy": one_of(*STRATEGIES), "keep_previous_s": at_least(0)},
}

_CONDITION = re.compile(r"^\s*(>=|<=|>|<)\s*(\S+)\s*$")
_ENDPOINT = re.compile(r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")  # SageMaker's rule for endpoint names
_ALIAS = re.compile(r"^[a-z0-9_-]{1,255}$")


# -- experiments ------------------------------------------------------------------------------


def load_experiment(
    path: str | Path | None = None, overrides: Mapping[str, str] | None = None
) -> specs.Experiment:
    """The experiment of the file at `path`, with dotted `overrides` on top.

    Without a path: experiments/question-types.toml, or the same values built in where there is no
    such file.
    """
    if path is None and not Path(DEFAULT_EXPERIMENT).exists():
        table: dict[str, Any] = {}
    else:
        table = _read_toml(Path(path or DEFAULT_EXPERIMENT))
    for key, text in (overrides or {}).items():
        _put(table, key.split("."), Override(text), key)
    return _experiment(table)


def _experiment(table: Mapping[str, Any]) -> specs.Experiment:
    problems: list[str] = []
    sections = {
        s: _section(table, s, problems) for s in ("data", "training", "tuning", "evaluation")
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


def _section(table: Mapping[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    section = table.get(name, {})
    if isinstance(section, dict):
        return section
    problems.append(f"{name}: must be a table [{name}], not {section!r}")
    return {}


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


def conditions(raw: Any, where: str, problems: list[str]) -> tuple[specs.Condition, ...]:
    """A gate table, `f1_macro = ">= 0.85"`, as conditions; complaints go to `problems`."""
    if not isinstance(raw, Mapping):
        problems.append(f"{where}: must be a table of metric = '>= number', not {raw!r}")
        return ()
    gate = []
    for metric, text in raw.items():
        match = _CONDITION.match(text) if isinstance(text, str) else None
        bound, complaint = scalar(Override(match[2]), float) if match else (0.0, "")
        if match is None or complaint:
            complaint = complaint or f"{text!r} is not a condition"
            problems.append(f"{where}.{metric}: {complaint}; write '>= 0.85' or '<= 40'")
        else:
            gate.append(specs.Condition(metric, match[1], bound))
    return tuple(gate)


# -- hardware ---------------------------------------------------------------------------------

BUILT_IN_PROFILES: Mapping[str, specs.Profile] = {
    "local": specs.Profile("local"),
    "cpu": specs.Profile("cpu", accelerator="cpu"),
    "gpu": specs.Profile("gpu", accelerator="gpu"),
    "hpu": specs.Profile("hpu", accelerator="hpu"),
}


def load_profile(
    name: str, path: str | Path = "hardware.toml", overrides: Mapping[str, str] | None = None
) -> specs.Profile:
    """The hardware profile `name`: built in, or of the file at `path`."""
    tables = _read_toml(Path(path)) if Path(path).exists() else {}
    if name not in tables and name not in BUILT_IN_PROFILES:
        raise ConfigError(
            f"hardware: unknown profile {name!r}; {nearest(name, {*tables, *BUILT_IN_PROFILES})}"
        )
    problems: list[str] = []
    base = specs.as_plain(BUILT_IN_PROFILES.get(name, specs.Profile(name)))
    extra = {key: Override(text) for key, text in (overrides or {}).items()}
    table = {**base, **_section(tables, name, problems), **extra}
    table.pop("name")
    profile = build(
        specs.Profile, table, f"hardware {name}", CHECKS["profile"], problems, name=name
    )
    if problems:
        raise ConfigError(problems)
    return profile


# -- deployments ------------------------------------------------------------------------------


def deployments_path(path: str | Path | None = None) -> Path:
    """Which deployments file is meant: `path`, else GREENROOM_DEPLOYMENTS, else the registry's."""
    return Path(path or os.environ.get("GREENROOM_DEPLOYMENTS") or "registry/deployments.toml")


def load_deployments(path: str | Path | None = None) -> tuple[specs.Deployment, ...]:
    """The deployments of the file, in its order."""
    file = deployments_path(path)
    table = _read_toml(file)
    problems: list[str] = []
    for key in table:
        if key != "deployment":
            problems.append(f"{key}: unknown key; valid: [[deployment]]")
    rows = table.get("deployment", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{file}: deployment must be written as [[deployment]]")
    deployments = tuple(_deployment(row, i, problems) for i, row in enumerate(rows))
    for what in ("name", "endpoint"):
        seen: set[str] = set()
        for deployment in deployments:
            value = getattr(deployment, what)
            if value in seen:
                problems.append(f"two deployments have the {what} {value!r}")
            seen.add(value)
    if problems:
        raise ConfigError([f"{file}: {problem}" for problem in problems])
    return deployments


def _deployment(row: Mapping[str, Any], index: int, problems: list[str]) -> specs.Deployment:
    where = f"deployment {row.get('name') or row.get('endpoint') or index + 1}"
    endpoint = row.get("endpoint") or row.get("name") or row.get("model") or ""
    name = row.get("name") or endpoint
    deployment = build(
        specs.Deployment,
        {**row, "name": name, "endpoint": endpoint},
        where,
        CHECKS["deployment"],
        problems,
        skip=("rollout", "gate"),
        rollout=build(
            specs.Rollout,
            _section(row, "rollout", problems),
            f"{where}.rollout",
            CHECKS["rollout"],
            problems,
        ),
        gate=conditions(row.get("gate", {}), f"{where}.gate", problems),
    )
    if not row.get("model"):
        problems.append(f"{where}.model: is missing; name the registered model")
    if bool(row.get("stage")) == bool(row.get("alias")):
        problems.append(f"{where}: give either stage or alias; valid stages: {', '.join(STAGES)}")
    if row.get("alias") and not _ALIAS.match(str(row["alias"])):
        problems.append(
            f"{where}.alias: {row['alias']!r}; use lower-case letters, digits, - and _ "
            "(MLflow's UI lower-cases aliases)"
        )
    if not _ENDPOINT.match(str(endpoint)):
        problems.append(
            f"{where}.endpoint: {endpoint!r}; use letters, digits and single hyphens, at most 63"
        )
    return deployment


# -- entry points -----------------------------------------------------------------------------

OPTIONS = ("experiment", "hardware", "tuned", "run")


def parse_arguments(step: str, argv: Sequence[str]) -> specs.Request:
    """What an entry point was asked to do: `--experiment FILE --training.epochs 2 ...`.

    An empty value is the same as none given (MLproject hands on its defaults so).
    """
    options, overrides = split_arguments(argv)
    hardware = {k[len("hardware.") :]: v for k, v in overrides.items() if _is_hardware(k)}
    return make_request(
        step,
        options,
        {k: v for k, v in overrides.items() if not _is_hardware(k)},
        hardware,
    )


def make_request(
    step: str,
    options: Mapping[str, str],
    overrides: Mapping[str, str],
    hardware: Mapping[str, str] | None = None,
) -> specs.Request:
    """The request of a step; problems of the experiment and of the profile come in one error."""
    problems: list[str] = []
    experiment, profile = specs.Experiment(), specs.Profile()
    if step not in specs.STEPS:
        problems.append(f"unknown step {step!r}; {nearest(step, specs.STEPS)}")
    try:
        experiment = load_experiment(options.get("experiment") or None, overrides)
    except ConfigError as error:
        problems += error.problems
    try:
        profile = load_profile(options.get("hardware") or "local", overrides=hardware)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return specs.Request(
        step,
        experiment,
        profile,
        "" if options.get("tuned") == "none" else options.get("tuned", ""),
        "" if options.get("run") == "latest" else options.get("run", ""),
        tuple(sorted(overrides)),
    )


def split_arguments(argv: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """`--key value` and `--key=value` as (options, dotted overrides); empty values left out."""
    options: dict[str, str] = {}
    overrides: dict[str, str] = {}
    problems: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            problems.append(f"unexpected argument {word!r}; write --key value")
            continue
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not words:
                problems.append(f"--{key}: a value is missing")
                continue
            value = words.pop(0)
        if key not in OPTIONS and key not in valid_keys() and not _is_open_key(key):
            problems.append(f"--{key}: unknown parameter; {_nearest_key(key)}")
        elif value != "":
            (options if key in OPTIONS else overrides)[key] = value
    if problems:
        raise ConfigError(problems)
    return options, overrides


def valid_keys() -> tuple[str, ...]:
    """Every dotted key that an override may name."""
    sections = {
        "data": specs.DataSpec,
        "training": specs.TrainingSpec,
        "tuning": specs.TuningSpec,
    }
    keys = ["name", "task", "models"]
    for section, cls in sections.items():
        keys += [f"{section}.{key}" for key in cls.__annotations__ if key != "space"]
    keys += [f"tuning.space.{key}" for key in specs.TrainingSpec.__annotations__]
    keys += [f"hardware.{key}" for key in specs.Profile.__annotations__ if key != "name"]
    return tuple(keys)


def _is_open_key(key: str) -> bool:
    return key.startswith("evaluation.gate.")


def _is_hardware(key: str) -> bool:
    return key.startswith("hardware.")


def _nearest_key(key: str) -> str:
    """The nearest of all keys, but only the section's own listed: the whole list fills a screen."""
    keys = valid_keys()
    section = key.rpartition(".")[0]
    same = [k for k in keys if section and k.rpartition(".")[0] == section]
    everywhere = nearest(key, (*OPTIONS, *keys)).partition("valid: ")[0]
    listed = same or [*OPTIONS, "name", "task", "models", "data.*", "training.*", "tuning.*"]
    return f"{everywhere}valid: {', '.join(listed)}"


# -- files ------------------------------------------------------------------------------------


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file (looked in {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _put(table: dict[str, Any], path: Sequence[str], value: Override, key: str) -> None:
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{key}: {part} is not a table")
        table = inner
    table[path[-1]] = value
