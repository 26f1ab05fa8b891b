"""`specs.Parameter` <-> hyperopt's expressions, with values of the key's own type.

hyperopt's numbers are numpy floats and its choices are indices; nothing of that leaves this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hyperopt import hp

from greenroom.specs import Parameter, TrainingSpec

_KINDS: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


def corners(training: TrainingSpec, space: Sequence[Parameter]) -> list[TrainingSpec]:
    """A training for each choice that a search can make of one parameter, the others as given:
    what can be refused is refused before the search starts."""
    found = [training]
    for parameter in space:
        found += [replace(training, **{parameter.name: v}) for v in parameter.values]
    return found


def expression(parameter: Parameter) -> Any:
    """The hyperopt expression that draws raw values for one parameter."""
    name, low, high = parameter.name, parameter.low, parameter.high
    if parameter.kind == "choice":
        return hp.randint(name, len(parameter.values))
    if parameter.integer:
        # Rounded afterwards, with the ends given a whole unit's share as every other value has.
        low, high = low - 0.5, high + 0.5
    if parameter.scale == "log":
        return hp.loguniform(
            name, math.log(max(low, 0.5) if parameter.integer else low), math.log(high)
        )
    if parameter.scale == "reverse_log":
        return hp.loguniform(name, math.log(1 - high), math.log(1 - low))
    return hp.uniform(name, low, high)


def expressions(space: Sequence[Parameter]) -> dict[str, Any]:
    """hyperopt's search space for all parameters."""
    return {parameter.name: expression(parameter) for parameter in space}


def value(parameter: Parameter, raw: float) -> Any:
    """What a raw draw stands for, as a plain Python value of the [training] key's type."""
    kind = _KINDS[TrainingSpec.__annotations__[parameter.name]]
    if parameter.kind == "choice":
        return kind(parameter.values[int(raw)])
    number = 1 - float(raw) if parameter.scale == "reverse_log" else float(raw)
    if parameter.integer:
        number = round(number)
    return kind(min(max(number, parameter.low), parameter.high))


def values(space: Sequence[Parameter], raw: Mapping[str, float]) -> dict[str, Any]:
    """All of a trial's values from its raw draws."""
    return {parameter.name: value(parameter, raw[parameter.name]) for parameter in space}
