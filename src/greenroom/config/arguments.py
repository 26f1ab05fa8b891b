"""What was typed after an entry point or `-P` -> `specs.Request`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from greenroom import specs
from greenroom.config.experiment import load_experiment
from greenroom.config.hardware import load_profile
from greenroom.errors import ConfigError, nearest

OPTIONS = ("experiment", "hardware", "tuned", "run")
_ONLY = {"tuned": "train", "run": "evaluate"}
_NONE = {"tuned": "none", "run": "latest"}  # MLproject's defaults: as if nothing were given


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
    for option, only in _ONLY.items():
        if options.get(option, "") not in ("", _NONE[option]) and step != only:
            problems.append(f"{option}: is for the step {only}, not {step}")
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
    tuned, run = ("" if options.get(o) == none else options.get(o, "") for o, none in _NONE.items())
    return specs.Request(step, experiment, profile, tuned, run, tuple(sorted(overrides)))


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
