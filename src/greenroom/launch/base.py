"""What a launcher is. One contract suite runs over every implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from greenroom.specs import Request, StepResult

Work = Callable[[Request], StepResult]


class Launcher(Protocol):
    """Runs a step at one kind of place and waits for its end."""

    def check(self, request: Request) -> None:
        """Raises `ConfigError` for what this place cannot do, before anything is started."""

    def run(self, request: Request, work: Work) -> StepResult:
        """The step's result. Elsewhere than here, `work` is what the far side calls."""
