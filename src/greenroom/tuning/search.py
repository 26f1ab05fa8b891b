"""Which values to try next: hyperopt's TPE by ask and tell.

The history is given anew at each question, so a search can go on from its runs, and trials can be
evaluated anywhere. Seeded by the search's seed and the trial's number: a serial search repeats.
Source: Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hyperopt import JOB_STATE_DONE, STATUS_FAIL, STATUS_OK, Trials, tpe, trials_from_docs
from hyperopt.base import Domain

from greenroom.specs import Parameter
from greenroom.tuning import space as spaces

# TPE draws at random before it has this many results; hyperopt's 20 would make short searches
# wholly random.
_RANDOM = 20
_RANDOM_LEAST = 4


@dataclass(frozen=True)
class Told:
    """A finished trial: its raw draws, and its loss (None: it failed)."""

    number: int
    raw: Mapping[str, float]
    loss: float | None


def ask(
    space: Sequence[Parameter], told: Sequence[Told], number: int, seed: int, max_trials: int
) -> dict[str, float]:
    """The raw draws of trial `number`, given the finished ones."""
    domain = Domain(lambda values: 0.0, spaces.expressions(space))
    trials = _trials(told)
    random = min(_RANDOM, max(_RANDOM_LEAST, max_trials // 3))
    seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0] % 2**31)
    docs = partial(tpe.suggest, n_startup_jobs=random)([number], domain, trials, seed)
    drawn = docs[0]["misc"]["vals"]
    return {parameter.name: float(drawn[parameter.name][0]) for parameter in space}


def _trials(told: Sequence[Told]) -> Any:
    docs = [_doc(trial) for trial in told]
    return trials_from_docs(docs) if docs else Trials()


def _doc(trial: Told) -> dict[str, Any]:
    failed = trial.loss is None
    return {
        "state": JOB_STATE_DONE,
        "tid": trial.number,
        "spec": None,
        "result": {"status": STATUS_FAIL} if failed else {"status": STATUS_OK, "loss": trial.loss},
        "misc": {
            "tid": trial.number,
            "cmd": ("domain_attachment", "FMinIter_Domain"),
            "workdir": None,
            "idxs": {name: [trial.number] for name in trial.raw},
            "vals": {name: [raw] for name, raw in trial.raw.items()},
        },
        "exp_key": None,
        "owner": None,
        "version": 0,
        "book_time": None,
        "refresh_time": None,
    }
