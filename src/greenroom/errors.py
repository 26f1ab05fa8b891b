"""Every exception that greenroom raises on purpose. The tree:

    GreenroomError
    ├── UserError                  wrong use: exit code 2; nothing was started or written
    │   ├── ConfigError            a file, a key, a value, a parameter
    │   ├── DataError              the source's files, columns, labels
    │   └── NotFoundError          a model, version, run, deployment that does not exist
    └── StepError                  the work itself failed: exit code 1
        ├── FinalError             trying again changes nothing
        │   ├── TrainingError      a non-finite loss
        │   ├── ParityError        the traced module differs from the eager one
        │   ├── GateError          evaluation results below the gate
        │   └── DeployError        a rollout failed and was rolled back
        └── RetryableError         a later try may succeed: a store or a port that does not answer

A message says what failed, on which input, where the logs are and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GreenroomError(Exception):
    """The root: `except GreenroomError` catches what greenroom raises on purpose, and no bug."""

    exit_code = 1


class UserError(GreenroomError):
    """Wrong use. Raised before anything is started or written."""

    exit_code = 2


class ConfigError(UserError):
    """One or more bad keys, values or parameters; `problems` holds one line for each."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class DataError(UserError):
    """The data cannot be used as it is: a file, a column, a label, an encoding."""


class NotFoundError(UserError):
    """A named model, version, run or deployment does not exist."""


class StepError(GreenroomError):
    """The work itself failed."""


class FinalError(StepError):
    """Trying again with the same values fails in the same way."""


class TrainingError(FinalError):
    """Training cannot go on, as after a non-finite loss."""


class ParityError(FinalError):
    """The exported module does not compute what the trained one does."""


class GateError(FinalError):
    """Evaluation results do not meet the gate."""


class DeployError(FinalError):
    """A rollout failed; what served before still serves."""


class RetryableError(StepError):
    """Something outside did not answer; the same call may succeed later."""


def first_line(error: Exception) -> str:
    """What a library's error says, without the advice to its own users below."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def nearest(name: str, valid: Iterable[str]) -> str:
    """The sentence that follows a wrong name: the nearest valid one, then all of them."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid: {', '.join(names) if names else '(none)'}"
