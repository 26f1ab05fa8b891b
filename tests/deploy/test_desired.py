"""What a look at the registry selects, refuses and overrules. Pure values, no store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.deploy import desired, probes
from greenroom.deploy.desired import OVERRIDE, TRIED
from greenroom.deploy.ledger import Served, before
from greenroom.errors import DeployError, NotFoundError
from greenroom.specs import Condition, Deployment
from greenroom.versions import EVALUATED, METRIC, Model, Version

BY_STAGE = Deployment("web", "m", stage="Production", endpoint="web")
BY_ALIAS = Deployment("web", "m", alias="champion", endpoint="web")
GATED = replace(BY_STAGE, gate=(Condition("accuracy", ">=", 0.9),))


def _version(number: int, stage: str = "None", at: int = 0, **tags: str) -> Version:
    text = {k.replace("__", "."): v for k, v in tags.items()}
    return Version("m", str(number), "", stage, (), text, f"models:/m-{number}", "", "", at)


def _model(*seen: Version, aliases: Mapping[str, str] | None = None, **tags: str) -> Model:
    return Model("m", tags, aliases or {}, seen)


def test_nothing_is_selected_nothing_is_wanted() -> None:
    want = desired.wanted(BY_STAGE, _model(_version(1), _version(2, "Archived")))
    assert not want.state.serves
    assert not want.state.hold


def test_of_two_in_production_the_latest_transition_counts_and_the_other_is_named() -> None:
    model = _model(_version(5, "Production", at=10), _version(2, "Production", at=20))
    want = desired.wanted(BY_STAGE, model)
    assert want.state.version == "2"
    assert "versions 2 and 5 are all in Production" in want.warnings[0]


def test_an_alias_selects() -> None:
    model = _model(_version(1), _version(2, "Production"), aliases={"champion": "1"})
    assert desired.wanted(BY_ALIAS, model).state.version == "1"
    assert not desired.wanted(BY_ALIAS, _model(_version(1))).state.serves


@pytest.mark.parametrize(
    "tags, why",
    [
        ({}, "never evaluated"),
        ({EVALUATED: "t"}, "measured no accuracy"),
        ({EVALUATED: "t", METRIC + "accuracy": "0.5"}, "accuracy >= 0.9 is not met, it is 0.5"),
        ({EVALUATED: "t", METRIC + "accuracy": "nan"}, "is not met"),
        ({EVALUATED: "t", METRIC + "accuracy": "0.9"}, ""),
    ],
)
def test_a_gate_refuses_and_holds_what_serves(tags: dict[str, str], why: str) -> None:
    version = replace(_version(1, "Production"), tags=tags)
    want = desired.wanted(GATED, _model(version))
    assert (why in want.refused) if why else (want.refused == "")
    assert want.state.hold == bool(why)
    assert want.state.serves != bool(why)


def test_without_a_gate_an_unevaluated_version_is_warned_about() -> None:
    want = desired.wanted(BY_STAGE, _model(_version(1, "Production")))
    assert want.state.serves
    assert "never evaluated" in want.warnings[0]


def test_an_unfinished_version_waits() -> None:
    version = replace(_version(1, "Production"), ready=False)
    assert desired.wanted(BY_STAGE, _model(version)).state.hold


def test_a_failed_attempt_is_not_made_again_until_something_changes() -> None:
    version = _version(1, "Production", at=5)
    tried = {TRIED + "web": desired.attempt(BY_STAGE, version) + " the port is taken"}
    failed = replace(version, tags=tried)
    want = desired.wanted(BY_STAGE, _model(failed))
    assert (want.state.hold, want.failed, want.refused) == (True, True, "the port is taken")
    changes = [
        (BY_STAGE, replace(failed, updated_ms=6)),  # promoted again
        (BY_STAGE, replace(failed, source="models:/m-9")),
        (BY_STAGE, replace(failed, tags={**tried, EVALUATED: "t"})),
        (replace(BY_STAGE, workers=2), failed),
    ]
    for deployment, changed in changes:
        assert not desired.wanted(deployment, _model(changed)).state.hold


# -- rollbacks ----------------------------------------------------------------------------------


def _rolled_back(model: Model, to: str) -> Model:
    tag = json.dumps({"version": to, "against": desired.selection(model)})
    return replace(model, tags={OVERRIDE + "web": tag})


LOOK = _model(
    _version(3, "Production", at=30),
    _version(2, "Archived", at=30),
    _version(1, "Archived", at=20),
    aliases={"champion": "3"},
)


@pytest.fixture(autouse=True)
def _versions_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "greenroom.versions.get", lambda name, number: replace(_version(int(number)), model=name)
    )


def test_a_rollback_overrules_stage_and_gate() -> None:
    want = desired.wanted(GATED, _rolled_back(LOOK, "2"))
    assert (want.state.version, want.overruled, want.refused) == ("2", "3", "")


@pytest.mark.parametrize(
    "seen, aliases",
    [
        ({3: ("Archived", 40)}, {}),  # the selected one archived
        ({4: ("Production", 40), 3: ("Archived", 40)}, {}),  # another promoted
        ({3: ("Production", 40)}, {}),  # the same one promoted again
        ({5: ("Staging", 40)}, {}),
        ({6: ("Archived", 40)}, {}),
        ({}, {"champion": "2"}),
        ({}, {"champion": "3", "other": "1"}),
    ],
)
def test_the_next_change_of_a_stage_or_alias_ends_it(
    seen: dict[int, tuple[str, int]], aliases: dict[str, str]
) -> None:
    model = _rolled_back(LOOK, "2")
    rows = {int(v.version): v for v in model.seen}
    rows.update({n: _version(n, stage, at) for n, (stage, at) in seen.items()})
    changed = replace(model, seen=tuple(rows.values()), aliases=aliases or model.aliases)
    want = desired.wanted(BY_STAGE, changed)
    assert want.overruled == ""
    assert want.stale_override


@pytest.mark.parametrize("tag", ["", "{", "3", "[]", '{"version": "2"}', '{"against": {}}', "null"])
def test_a_rollbacks_tag_that_holds_none_counts_for_nothing(tag: str) -> None:
    want = desired.wanted(BY_STAGE, replace(LOOK, tags={OVERRIDE + "web": tag}))
    assert (want.state.version, want.overruled, want.stale_override) == ("3", "", True)


def test_a_rollback_to_a_version_that_was_deleted_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str, number: str) -> Version:
        raise NotFoundError(f"model {name!r} has no version {number}")

    monkeypatch.setattr("greenroom.versions.get", missing)
    want = desired.wanted(BY_STAGE, _rolled_back(LOOK, "2"))
    assert (want.state.version, want.overruled, want.stale_override) == ("3", "", True)


def test_a_metric_that_is_no_number_is_none() -> None:
    tags = {EVALUATED: "t", METRIC + "accuracy": "good", METRIC + "f1": "0.5"}
    version = replace(_version(1, "Production"), tags=tags)
    assert version.metrics == {"f1": 0.5}
    assert "measured no accuracy" in desired.wanted(GATED, _model(version)).refused


def test_a_new_version_a_tag_or_a_description_does_not_end_it() -> None:
    model = _rolled_back(LOOK, "2")
    noted = replace(model.seen[0], description="broken: see the log", updated_ms=50)
    tagged = replace(noted, tags={"note": "x"})
    changed = replace(model, seen=(tagged, *model.seen[1:], _version(9, at=60)))
    assert desired.wanted(BY_STAGE, changed).state.version == "2"


# -- what served before -------------------------------------------------------------------------


def _history(*entries: str) -> tuple[Served, ...]:
    """`r2` is a rollback to version 2."""
    return tuple(Served("m", e.lstrip("r"), e.startswith("r")) for e in entries)


@pytest.mark.parametrize(
    "entries, now, expected",
    [
        ("", "", ""),
        ("1", "1", ""),
        ("1 2", "2", "1"),
        ("1 2 3", "3", "2"),
        ("1 2 3 r2", "2", "1"),  # two rollbacks in a row go back by two
        ("1 2 3 r2 r1", "1", ""),
        ("1 2 3 r2 4", "4", "2"),  # not to 3, which was taken back
        ("1 2 1", "1", "2"),
        ("1 2 3 r1 3", "3", "1"),
        ("1 2", "", "2"),  # stopped by hand
        ("1 1 2 2", "2", "1"),
    ],
)
def test_the_last_good_version(entries: str, now: str, expected: str) -> None:
    assert before(_history(*entries.split()), "m", now) == expected


@given(st.lists(st.sampled_from(["1", "2", "3", "r1", "r2"])), st.sampled_from(["", "1", "2"]))
def test_it_is_never_the_one_that_serves(entries: list[str], now: str) -> None:
    found = before(_history(*entries), "m", now)
    assert found != now or found == ""
    assert before(_history(*entries), "another model", now) == ""


# -- probes -------------------------------------------------------------------------------------

RECORDED = probes.Probes(
    ("a", "b"),
    (
        {"label": "x", "scores": {"x": 0.7, "y": 0.3}},
        {"label": "y", "scores": {"x": 0.1, "y": 0.9}},
    ),
    1e-3,
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"probes": [], "tolerance": "x"}',
        '{"probes": [{"instance": "a"}], "tolerance": 1}',
        '{"probes": [{"instance": "a", "label": "x", "scores": 1}], "tolerance": 1}',
        '{"probes": [{"label": "x", "scores": {"x": 1}}], "tolerance": 1}',
        '{"probes": 3, "tolerance": 1}',
    ],
)
def test_broken_probes_fail_the_version_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "probes.json").write_text(text)
    with pytest.raises(DeployError, match=r"m version 3: .*probes\.json holds no probes"):
        probes.read(tmp_path, "m version 3")


def _answers(*scores: float, label: str = "y") -> list[dict[str, object]]:
    first = {"label": "x", "scores": {"x": scores[0], "y": 1 - scores[0]}}
    return [first, {"label": label, "scores": {"x": 1 - scores[1], "y": scores[1]}}]


@pytest.mark.parametrize(
    "answers, problems",
    [
        (_answers(0.7, 0.9), []),
        (_answers(0.7009, 0.9), []),
        (_answers(0.702, 0.9), ["probe 0: a score differs by 0.002, over 0.001"]),
        (_answers(float("nan"), 0.9), ["probe 0: a score differs by nan, over 0.001"]),
        (_answers(0.7, 0.9, label="x"), ["probe 1: 'x', not 'y'"]),
        ([], ["0 predictions for 2 probes"]),
        ([{"label": "x"}, {"label": "y"}], ["probe 0: ", "probe 1: "]),
    ],
)
def test_probes_compare(answers: list[dict[str, object]], problems: list[str]) -> None:
    found = probes.compare(RECORDED, answers)
    assert len(found) == len(problems)
    assert all(a.startswith(b) for a, b in zip(found, problems, strict=True))
