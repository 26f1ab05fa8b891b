"""Which examples train, which choose, which test. Called by `snapshot`; pure.

Stratified: every label keeps its share in every part. The same examples and seed give the same
parts on every machine and with every version of numpy, whose generators promise no such thing:
the order is that of digests.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from greenroom.errors import DataError

T = TypeVar("T")

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
    _check_known(labels, parts)  # carving keeps every label in train, so once is enough
    wanted = {p: f for p, f in fractions.items() if f > 0 and p not in parts}
    rows = [i for i, part in enumerate(parts) if part == TRAIN]
    notes: list[str] = []
    if wanted:
        inside = [labels[i] for i in rows]
        if groups is None:
            carved, notes = _by_label(inside, wanted, seed)
        else:
            carved = _by_group(inside, [groups[i] for i in rows], wanted, seed)
        for i, part in zip(rows, carved, strict=True):
            parts[i] = part
        _check_filled(parts, wanted, labels)
    if groups is not None and given is not None:
        notes += _crossing(groups, parts)
    return parts, tuple(notes)


def _by_label(
    labels: Sequence[str], fractions: Mapping[str, float], seed: int
) -> tuple[list[str], list[str]]:
    """Parts such that every label with enough examples is in all of them."""
    parts = [TRAIN] * len(labels)
    needed = 1 + len(fractions)
    rows: dict[str, list[int]] = {}
    for i, label in enumerate(labels):
        rows.setdefault(label, []).append(i)
    small = [label for label in sorted(rows) if len(rows[label]) < needed]
    for label in sorted(rows.keys() - set(small)):
        order = _shuffled(rows[label], f"{seed} {label}")
        for part, size in _sizes(len(order), fractions).items():
            for i in order[:size]:
                parts[i] = part
            order = order[size:]
    if not small:
        return parts, []
    listed = ", ".join(f"{label!r} ({len(rows[label])})" for label in small[:10])
    more = f" and {len(small) - 10} more" if len(small) > 10 else ""
    return parts, [f"labels with fewer than {needed} examples stay in train alone: {listed}{more}"]


def _shuffled(items: Sequence[T], salt: str) -> list[T]:
    """The items in an order that depends on their number and `salt` alone."""

    def key(i: int) -> bytes:
        return hashlib.sha256(f"{salt} {i}".encode()).digest()

    return [items[i] for i in sorted(range(len(items)), key=key)]


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
    seed: int,
) -> list[str]:
    """Parts in which no group is cut, with labels' shares as near as groups allow.

    Greedy, large groups first: each goes where it brings the counts of all labels nearest to the
    parts' targets (least squares, relative to a label's total); but a label's last group goes to
    train if none has yet, and the last groups that may go anywhere fill empty parts.
    """
    keys = [f"g{g}" if g is not None else f"n{i}" for i, g in enumerate(groups)]  # null: alone
    column = {label: c for c, label in enumerate(sorted(set(labels)))}
    held = {key: np.zeros(len(column)) for key in sorted(set(keys))}
    for key, label in zip(keys, labels, strict=True):
        held[key][column[label]] += 1
    total = sum(held.values(), np.zeros(len(column)))
    shares = {TRAIN: 1 - sum(fractions.values()), **fractions}
    lacking = {part: share * total for part, share in shares.items()}
    unseen = sum((counts > 0 for counts in held.values()), np.zeros(len(column)))  # groups to come
    taught = np.zeros(len(column), dtype=bool)  # the labels that train has
    movable = {key for key in held if (unseen[held[key] > 0] > 1).all()}
    order = sorted(_shuffled(list(held), str(seed)), key=lambda key: -float(held[key].sum()))
    home: dict[str, str] = {}
    for key in order:
        has = held[key] > 0
        empty = [part for part in shares if part not in home.values()]
        choice = empty if empty and len(movable) <= len(empty) else list(shares)
        if (has & (unseen == 1) & ~taught).any():
            choice = [TRAIN]
        gain = {part: float((held[key] * lacking[part] / total).sum()) for part in choice}
        part = home[key] = max(gain, key=gain.__getitem__)
        lacking[part] = lacking[part] - held[key]
        taught = taught | (has & (part == TRAIN))
        unseen = unseen - has
        movable.discard(key)
    return [home[key] for key in keys]


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
