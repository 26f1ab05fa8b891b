"""Splitting: shares, groups, given parts, small labels, and the same result everywhere."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from greenroom.data.split import split
from greenroom.errors import DataError

FRACTIONS = {"validation": 0.1, "test": 0.2}
LABELS = st.lists(st.sampled_from("abcdef"), min_size=3, max_size=200)


@given(LABELS, st.integers(0, 2**32 - 1))
def test_every_label_that_can_be_is_in_every_part(labels: list[str], seed: int) -> None:
    assume(max(Counter(labels).values()) >= 3)
    parts, notes = split(labels, None, None, FRACTIONS, seed)
    assert len(parts) == len(labels)
    for label, count in Counter(labels).items():
        there = Counter(p for p, v in zip(parts, labels, strict=True) if v == label)
        if count < 3:
            assert there == {"train": count}
            assert f"{label!r} ({count})" in notes[0]
        else:
            assert set(there) == {"train", "validation", "test"}
            assert abs(there["validation"] - count * 0.1) <= 1
            assert abs(there["test"] - count * 0.2) <= 1
    assert split(labels, None, None, FRACTIONS, seed) == (parts, notes)


def test_another_seed_is_another_split() -> None:
    labels = ["a", "b"] * 50
    found = {tuple(split(labels, None, None, FRACTIONS, seed)[0]) for seed in range(5)}
    assert len(found) == 5


def test_the_split_of_seed_13_is_fixed() -> None:
    """A change of code that moves examples between parts must not pass unseen."""
    parts, _ = split(["a", "b"] * 10, None, None, FRACTIONS, 13)
    where = defaultdict(list)
    for i, part in enumerate(parts):
        where[part].append(i)
    assert (where["validation"], where["test"]) == ([17, 18], [0, 5, 10, 13])


GROUPED = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 12).map(str)),
    min_size=30,
    max_size=150,
)


@given(GROUPED, st.integers(0, 99))
def test_no_group_is_cut(rows: list[tuple[str, str | None]], seed: int) -> None:
    labels, groups = [r[0] for r in rows], [r[1] for r in rows]
    keys = [g if g is not None else f"row {i}" for i, g in enumerate(groups)]
    try:
        parts, _ = split(labels, groups, None, FRACTIONS, seed)
    except DataError:  # too few groups hold no label alone
        owners = {v: {g for w, g in zip(labels, keys, strict=True) if w == v} for v in labels}
        alone = {next(iter(found)) for found in owners.values() if len(found) == 1}
        assert len(set(keys) - alone) < 6
        return
    places = defaultdict(set)
    for group, part in zip(groups, parts, strict=True):
        if group is not None:
            places[group].add(part)
    assert all(len(found) == 1 for found in places.values())
    assert set(parts) == {"train", "validation", "test"}
    known = {v for v, p in zip(labels, parts, strict=True) if p == "train"}
    assert known == set(labels)


def test_groups_come_near_the_shares() -> None:
    groups = [f"g{i % 50}" for i in range(1000)]
    labels = ["ab"[i % 50 % 2] for i in range(1000)]
    parts, _ = split(labels, groups, None, FRACTIONS, 13)
    by_label = Counter(zip(parts, labels, strict=True))
    for label in "ab":
        assert 40 <= by_label["validation", label] <= 60
        assert 80 <= by_label["test", label] <= 120


def test_a_label_of_one_group_goes_to_train() -> None:
    groups = ["rare"] * 2 + [f"g{i}" for i in range(40)]
    labels = ["r"] * 2 + ["a", "b"] * 20
    for seed in range(10):
        parts, _ = split(labels, groups, None, FRACTIONS, seed)
        assert parts[:2] == ["train", "train"]


@pytest.mark.parametrize("owners", [1, 2])
def test_a_label_of_few_groups_goes_to_train_even_when_train_is_small(owners: int) -> None:
    groups = [f"rare{i}" for i in range(owners)] + [f"g{i % 30}" for i in range(90)]
    labels = ["r"] * owners + ["a", "b"] * 45
    for seed in range(10):
        parts, _ = split(labels, groups, None, {"validation": 0.4, "test": 0.4}, seed)
        assert "train" in parts[:owners]


@pytest.mark.parametrize("count", [3, 4, 6])
def test_few_groups_still_fill_every_part(count: int) -> None:
    groups = [f"g{i % count}" for i in range(count * 10)]
    labels = ["a"] * (count * 5) + ["b"] * (count * 5)
    parts, _ = split(labels, groups, None, {"validation": 0.1, "test": 0.1}, 13)
    assert Counter(parts) == {"train": 10 * (count - 2), "validation": 10, "test": 10}


def test_given_parts_stay_and_missing_ones_come_from_train() -> None:
    labels = ["a", "b"] * 20
    given_parts = ["train"] * 30 + ["test"] * 10
    parts, _ = split(labels, None, given_parts, FRACTIONS, 13)
    assert parts[30:] == ["test"] * 10
    assert Counter(parts[:30]) == {"train": 26, "validation": 4}  # of 15 + 15: int(1.5 + 0.5) each
    whole = ["train"] * 30 + ["test"] * 6 + ["validation"] * 4
    assert split(labels, None, whole, FRACTIONS, 13)[0] == whole


def test_a_fraction_of_nothing_makes_no_part() -> None:
    parts, _ = split(["a", "b"] * 10, None, None, {"validation": 0.0, "test": 0.2}, 13)
    assert set(parts) == {"train", "test"}


def test_groups_across_given_parts_are_reported() -> None:
    given_parts = ["train", "train", "validation", "test"]
    _, notes = split(["a", "b", "a", "b"], ["g", "h", "g", None], given_parts, FRACTIONS, 13)
    assert notes == ("1 groups lie in several of the given splits",)


def test_labels_that_train_never_shows_are_named() -> None:
    given_parts = ["train", "train", "test", "test", "validation"]
    with pytest.raises(DataError) as error:
        split(["a", "b", "née", "a", "z"], None, given_parts, FRACTIONS, 13)
    assert str(error.value) == (
        "data.splits: validation has labels that train never shows: 'z' (1)\n"
        "data.splits: test has labels that train never shows: 'née' (1)"
    )


@pytest.mark.parametrize(
    "labels, given_parts, said",
    [
        (["a", "b"], None, "too few examples for validation and test: 2 of 2 labels"),
        (["a", "b"], ["test", "test"], "no example is in train, only in test"),
    ],
)
def test_what_cannot_be_split(labels: list, given_parts: list | None, said: str) -> None:
    with pytest.raises(DataError) as error:
        split(labels, None, given_parts, FRACTIONS, 13)
    assert said in str(error.value)
