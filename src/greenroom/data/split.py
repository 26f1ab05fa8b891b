"""Which examples train, which choose, which test. Called by `snapshot`; pure.

Stratified: every label keeps its share in every part. The same examples and seed give the same
parts on every machine: only integers and numpy's PCG64 are used, and order is the source's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from greenroom.errors import DataError

TRAIN, VALIDATION, TEST = "train", "validation", "test"


def split(
    labels: Sequence[str],
    groups: Sequence[str | None] | None,
    given: Sequence[str] | None,
    fractions: Mapping[str, float],
    seed: int,
) -> tuple[list[str], tuple[str, ...]]:
    """The part of each example, and notes.

    `given` names each example's part, where the source says it: such parts stay as they are, and
    a wanted one that is missing is carved out of train. `fractions` says which share validation
    and test take (of all, or of train when carved). A group's examples stay together.

    Raises `DataError` when train would be empty or lack a label that another part has.
    """
    parts = list(given) if given is not None else [TRAIN] * len(labels)
    if TRAIN not in parts:
        raise DataError(
            f"data.splits: no example is in train, only in {', '.join(sorted(set(parts)))}"
        )
    wanted = {p: f for p, f in fractions.items() if f > 0 and p not in parts}
    rows = [i for i, part in enumerate(parts) if part == TRAIN]
    notes: list[str] = []
    if wanted:
        inside = [labels[i] for i in rows]
        rng = np.random.default_rng(seed)
        if groups is None:
            carved, small = _by_label(inside, wanted, rng)
            notes += small
        else:
            carved, moved = _by_group(inside, [groups[i] for i in rows], wanted, rng)
            notes += moved
        for i, part in zip(rows, carved, strict=True):
            parts[i] = part
        _check_filled(parts, wanted, labels)
    if groups is not None and given is not None:
        notes += _crossing(groups, parts)
    _check_known(labels, parts)
    return parts, tuple(notes)


def _by_label(
    labels: Sequence[str], fractions: Mapping[str, float], rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Parts such that every label with enough examples is in all of them."""
    parts = [TRAIN] * len(labels)
    needed = 1 + len(fractions)
    rows: dict[str, list[int]] = {}
    for i, label in enumerate(labels):
        rows.setdefault(label, []).append(i)
    small = [label for label in sorted(rows) if len(rows[label]) < needed]
    for label in sorted(rows.keys() - set(small)):
        order = [rows[label][i] for i in rng.permutation(len(rows[label]))]
        for part, size in _sizes(len(order), fractions).items():
            for i in order[:size]:
                parts[i] = part
            order = order[size:]
    if not small:
        return parts, []
    listed = ", ".join(f"{label!r} ({len(rows[label])})" for label in small[:10])
    more = f" and {len(small) - 10} more" if len(small) > 10 else ""
    return parts, [f"labels with fewer than {needed} examples stay in train alone: {listed}{more}"]


def _sizes(count: int, fractions: Mapping[str, float]) -> dict[str, int]:
    """Each part's number of a label's `count` examples: at least one, and at least one is left."""
    sizes = {part: max(1, int(count * f + 0.5)) for part, f in fractions.items()}
    while sum(sizes.values()) >= count:
        sizes[max(sizes, key=sizes.__getitem__)] -= 1
    return sizes


def _by_group(
    labels: Sequence[str],
    groups: Sequence[str | None],
    fractions: Mapping[str, float],
    rng: np.random.Generator,
) -> tuple[list[str], list[str]]:
    """Parts in which no group is cut, with labels' shares as near as groups allow.

    Greedy, large groups first: each goes where it brings the counts of all labels nearest to the
    parts' targets (least squares, relative to a label's total); the last ones fill empty parts.
    """
    keys = [f"g{g}" if g is not None else f"n{i}" for i, g in enumerate(groups)]  # null: alone
    names = sorted(set(labels))
    column = {label: c for c, label in enumerate(names)}
    held = {key: np.zeros(len(names)) for key in sorted(set(keys))}
    for key, label in zip(keys, labels, strict=True):
        held[key][column[label]] += 1
    shares = {TRAIN: 1 - sum(fractions.values()), **fractions}
    total = sum(held.values(), np.zeros(len(names)))
    lacking = {part: share * total for part, share in shares.items()}
    order = [list(held)[i] for i in rng.permutation(len(held))]
    order.sort(key=lambda key: -float(held[key].sum()))
    home: dict[str, str] = {}
    for done, key in enumerate(order):
        empty = [part for part in shares if part not in home.values()]
        choice = empty if len(order) - done <= len(empty) else list(shares)
        gain = {part: float((held[key] * lacking[part] / total).sum()) for part in choice}
        home[key] = max(choice, key=gain.__getitem__)
        lacking[home[key]] = lacking[home[key]] - held[key]
    moved = _teach(home, held, names, order)
    return [home[key] for key in keys], moved


def _teach(
    home: dict[str, str], held: Mapping[str, np.ndarray], names: Sequence[str], order: Sequence[str]
) -> list[str]:
    """Moves to train, in `home`, the smallest group of each label that train lacks."""
    notes = []
    for c, label in enumerate(names):
        owners = [key for key in order if held[key][c]]
        if any(home[key] == TRAIN for key in owners):
            continue
        smallest = min(owners, key=lambda k: float(held[k].sum()))
        notes.append(f"a group went from {home[smallest]} to train, which lacked label {label!r}")
        home[smallest] = TRAIN
    return notes


def _check_filled(parts: Sequence[str], wanted: Mapping[str, float], labels: Sequence[str]) -> None:
    empty = [part for part in wanted if part not in parts]
    if empty:
        raise DataError(
            f"data.source: too few examples for {' and '.join(empty)}: {len(labels)} of "
            f"{len(set(labels))} labels; a label (or, with data.group, a set of groups) needs at "
            f"least {1 + len(wanted)} to be in every part; add data, or set data."
            f"{empty[0]}_fraction = 0"
        )


def _check_known(labels: Sequence[str], parts: Sequence[str]) -> None:
    known = {label for label, part in zip(labels, parts, strict=True) if part == TRAIN}
    problems = []
    for part in (VALIDATION, TEST):
        counts = Counter(
            label
            for label, p in zip(labels, parts, strict=True)
            if p == part and label not in known
        )
        if counts:
            unknown = ", ".join(f"{label!r} ({n})" for label, n in sorted(counts.items()))
            problems.append(f"data.splits: {part} has labels that train never shows: {unknown}")
    if problems:
        raise DataError("\n".join(problems))


def _crossing(groups: Sequence[str | None], parts: Sequence[str]) -> list[str]:
    places: dict[str, set[str]] = {}
    for group, part in zip(groups, parts, strict=True):
        if group is not None:
            places.setdefault(group, set()).add(part)
    crossing = sum(len(p) > 1 for p in places.values())
    return [f"{crossing} groups lie in several of the given splits"] if crossing else []
