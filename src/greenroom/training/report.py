"""Pictures and the model card. Called by the steps; matplotlib draws without a display."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

mpl.use("Agg")

_BLUE, _GREY, _ORANGE = "#2f6db5", "#8a8f98", "#d9822b"


def curves(history: Sequence[Mapping[str, float]], best_epoch: int, folder: Path) -> list[Path]:
    """One PNG for each metric over the epochs; train and validation loss share one."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in sorted({key for row in history for key in row} - {"train_loss"}):
        lines = {name.removeprefix("validation_"): [row.get(name, np.nan) for row in history]}
        if name == "validation_loss":
            lines = {
                "validation": lines["loss"],
                "train": [row["train_loss"] for row in history],
            }
        title = name.removeprefix("validation_").replace("_", " ")
        written.append(_curve(title, lines, best_epoch, folder / f"{name}.png"))
    if not any("validation_loss" in row for row in history):
        lines = {"train": [row["train_loss"] for row in history]}
        written.append(_curve("train loss", lines, best_epoch, folder / "train_loss.png"))
    return written


def _curve(title: str, lines: Mapping[str, Sequence[float]], best_epoch: int, file: Path) -> Path:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    colours = (_BLUE, _GREY)
    for (name, values), colour in zip(lines.items(), colours, strict=False):
        epochs = range(1, len(values) + 1)
        axes.plot(epochs, values, marker="o", markersize=4, color=colour, label=name)
    if best_epoch:
        axes.axvline(best_epoch, color=_ORANGE, linestyle=":", label=f"best epoch ({best_epoch})")
    axes.set_title(title, loc="left")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.5, max(map(len, lines.values())) + 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=120)
    return file


# Beyond this many labels, numbers in the cells are too small to be read.
_NUMBERED = 15


def confusion(matrix: npt.NDArray[np.int64], labels: Sequence[str], file: Path) -> Path:
    """A PNG of the confusion matrix, coloured by the share of each true label."""
    count = len(labels)
    side = float(np.clip(2.5 + 0.45 * count, 4, 24))
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    names = [_shown(label) for label in labels]
    size = 8 if count <= 40 else 5
    axes.set_xticks(range(count), names, rotation=90, fontsize=size)
    axes.set_yticks(range(count), names, fontsize=size)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if count <= _NUMBERED:
        for (row, column), value in np.ndenumerate(matrix):
            colour = "white" if share[row, column] > 0.5 else "black"
            axes.text(column, row, str(value), ha="center", va="center", color=colour, fontsize=8)
    with warnings.catch_warnings():
        # matplotlib's one font lacks many scripts: boxes, while labels.json has the names.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(file, dpi=120)
    return file


def _shown(label: str) -> str:
    """A label as matplotlib can draw it: no mathematics between dollar signs, not too long."""
    text = label.replace("$", r"\$")
    return text if len(text) <= 24 else text[:23] + "…"


def card(
    name: str, facts: Mapping[str, str], labels: Sequence[str], metrics: Mapping[str, float]
) -> str:
    """The model card in Markdown; evaluation adds the test results later."""
    rows = [f"| {key} | {value} |" for key, value in facts.items()]
    results = [f"| {key} | {value:.4g} |" for key, value in metrics.items()]
    shown = ", ".join(f"`{label}`" for label in labels[:50])
    more = f" and {len(labels) - 50} more" if len(labels) > 50 else ""
    return "\n".join(
        [
            f"# {name}",
            "",
            f"Text in, one of {len(labels)} labels and its score out: {shown}{more}.",
            "",
            "| fact | value |",
            "| --- | --- |",
            *rows,
            "",
            "## Validation, best epoch",
            "",
            "| metric | value |",
            "| --- | --- |",
            *results,
            "",
        ]
    )
