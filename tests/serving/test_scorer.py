"""The scorer: order, padding, truncation, bad instances, and what it may import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import modelkit
from greenroom.serving import scorer as module
from greenroom.serving.scorer import BadInstance, Scorer, _load_pyfunc


@pytest.fixture(scope="module")
def scorer(model: Path) -> Scorer:
    return Scorer.load(model)


def test_scores_are_the_softmax_of_the_module(scorer: Scorer) -> None:
    logits = scorer.logits(["where is paris"])[0].astype(float)
    expected = np.exp(logits) / np.exp(logits).sum()
    answer = scorer.score(["where is paris"])[0]
    assert answer["label"] == modelkit.LABELS[int(expected.argmax())]
    assert answer["score"] == pytest.approx(expected.max())
    assert list(answer["scores"]) == list(modelkit.LABELS)
    assert list(answer["scores"].values()) == pytest.approx(expected.tolist())
    assert "truncated" not in answer


_texts = st.lists(
    st.lists(st.sampled_from([*modelkit.WORDS, "zebra", "日本", "😀"]), max_size=25).map(" ".join),
    min_size=1,
    max_size=12,
)


@given(texts=_texts, batch_size=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_company_and_order_change_no_answer(
    scorer: Scorer, texts: list[str], batch_size: int
) -> None:
    together = scorer.logits(texts, batch_size)
    alone = np.concatenate([scorer.logits([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_an_over_long_text_is_cut_and_says_so(scorer: Scorer) -> None:
    room = scorer.max_length - 2  # [CLS] and [SEP]
    fits, over = scorer.score([" ".join(["dog"] * room), " ".join(["dog"] * (room + 1))])
    assert "truncated" not in fits
    assert over["truncated"] is True
    assert over["scores"] == pytest.approx(fits["scores"], abs=1e-6)


@pytest.mark.parametrize("text", ["dog " * 1_000_000, "d" * 4_000_000, " " * 4_000_000])
def test_a_huge_text_is_cut_before_it_is_tokenized(
    scorer: Scorer, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scorer.score([text[: 16 * 100]])[0]["scores"]
    read: list[int] = []
    tokenizer = scorer._tokenizer

    class Counting:
        """A tokenizer that notes how much it is given."""

        def encode_batch_fast(self, texts: list[str]) -> object:
            read.extend(map(len, texts))
            return tokenizer.encode_batch_fast(texts)

    monkeypatch.setattr(scorer, "_tokenizer", Counting())
    (answer,) = scorer.score([text])
    assert answer["truncated"] is True
    assert answer["scores"] == expected
    assert read == [16 * 100]  # a hundred characters for each of the model's 16 tokens


def test_texts_and_objects_mix_and_odd_characters_score(scorer: Scorer) -> None:
    odd = ["a dog", {"text": "a dog", "id": 7}, "", "\ud83d", "\x00\u200b", "אב🇫🇷", "x" * 50_000]
    answers = scorer.score(odd)
    assert len(answers) == len(odd)
    assert answers[0]["scores"] == pytest.approx(answers[1]["scores"], abs=1e-6)


@pytest.mark.parametrize("bad", [None, 3, 1.5, True, [], ["a"], {}, {"txt": "a"}, {"text": None}])
def test_a_bad_instance_is_named(scorer: Scorer, bad: object) -> None:
    with pytest.raises(BadInstance) as caught:
        scorer.score(["fine", bad, "fine"])
    assert caught.value.index == 1
    assert str(caught.value).startswith("instance 1: ")


def test_none_in_none_out(scorer: Scorer) -> None:
    assert scorer.score([]) == []
    assert scorer.logits([]).shape == (0, len(modelkit.LABELS))


def test_pyfunc_takes_every_input_of_mlflow(model: Path) -> None:
    pyfunc = _load_pyfunc(str(model))
    inputs = [
        pandas.DataFrame({"text": ["a dog", "where"], "id": [1, 2]}),
        pandas.DataFrame({"question": ["a dog", "where"]}),
        ["a dog", "where"],
        np.array(["a dog", "where"]),
        {"text": np.array(["a dog", "where"])},
    ]
    frames = [pyfunc.predict(value) for value in inputs]
    assert all(frame.equals(frames[0]) for frame in frames[1:])
    assert set(json.loads(frames[0]["scores"][0])) == set(modelkit.LABELS)


@pytest.mark.parametrize(
    "file, text, says",
    [
        ("greenroom.json", None, "not a model folder"),
        ("greenroom.json", '{"format": 99}', "has format 99"),
        ("tokenizer.json", "{}", "cannot be loaded"),
        ("module.pt", "no zip", "cannot be loaded"),
    ],
)
def test_a_broken_folder_is_named(tmp_path: Path, file: str, text: str | None, says: str) -> None:
    folder = modelkit.write_model(tmp_path / "m")
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        Scorer.load(folder)
    assert str(folder) in str(caught.value)


def test_it_imports_neither_greenroom_nor_what_training_needs(model: Path) -> None:
    program = (
        "import sys, importlib.util as u\n"
        f"spec = u.spec_from_file_location('greenroom_scorer_test', {module.__file__!r})\n"
        "m = u.module_from_spec(spec); sys.modules[spec.name] = m; spec.loader.exec_module(m)\n"
        f"m.Scorer.load({str(model)!r}).score(['a'])\n"
        "print(sorted({n.partition('.')[0] for n in sys.modules}))"
    )
    command = [sys.executable, "-I", "-c", program]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(out.replace("'", '"')))
    assert not loaded & {"greenroom", "mlflow", "transformers", "pandas", "datasets", "accelerate"}
