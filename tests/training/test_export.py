"""A traced module equals the eager one, or the export says where it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from greenroom.errors import ParityError
from greenroom.training import export

from . import toy

KEYS = ("input_ids", "attention_mask")


def test_parity_over_batch_sizes_and_lengths() -> None:
    model = toy.model()
    traced = export.trace(model, KEYS, toy.VOCABULARY, 32)
    found = export.parity(traced, model, KEYS, toy.VOCABULARY, 32)
    assert found.max_difference <= 1e-4
    assert found.lengths == (1, 2, 3, 8, 16, 31, 32)
    assert found.batch_sizes == (1, 2, 5)


class Branching(torch.nn.Module):
    """Answers by a branch on the batch's width, which tracing bakes in."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        value = (input_ids * attention_mask).sum(1, keepdim=True).float()
        return value * 2 if input_ids.shape[1] > 16 else value


class Broken(torch.nn.Module):
    """Answers no number."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return (input_ids * attention_mask).sum(1, keepdim=True) / 0.0 * 0.0


@pytest.mark.parametrize("model", [Branching(), Broken()])
def test_a_module_that_tracing_changes_is_refused(model: torch.nn.Module) -> None:
    traced = export.trace(model, KEYS, 50, 32)
    with pytest.raises(ParityError, match=r"differs from the eager one by .* tokens"):
        export.parity(traced, model, KEYS, 50, 32)


def test_inputs_arrive_in_the_order_of_the_keys() -> None:
    class Second(torch.nn.Module):
        def forward(self, attention_mask: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
            return (input_ids * attention_mask).float()

    keys = ("attention_mask", "input_ids")
    traced = export.trace(Second(), keys, 50, 8)
    assert export.parity(traced, Second(), keys, 50, 8).max_difference == 0.0
    mask, ids = torch.tensor([[1, 0]]), torch.tensor([[7, 9]])
    assert traced(mask, ids).tolist() == [[7.0, 0.0]]


def test_requirements_can_be_installed() -> None:
    pins = export.requirements()
    assert all("+" not in pin and "==" in pin for pin in pins)
    assert {pin.split("==")[0] for pin in pins} == {"torch", "tokenizers", "numpy", "pandas"}


def test_the_folder_scores_without_greenroom_and_transformers(tmp_path: Path) -> None:
    from modelkit import tokenizer

    words = tokenizer(16)
    words.save(str(tmp_path / "tokenizer.json"))
    model = toy.model()
    traced = export.trace(model, KEYS, toy.VOCABULARY, 16)
    meta = {
        "labels": ["a", "b", "c"],
        "input_keys": list(KEYS),
        "max_length": 16,
        "pad_id": 0,
        "text": "text",
    }
    folder = export.write_folder(tmp_path / "f", traced, tmp_path / "tokenizer.json", meta, "card")
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "greenroom.json",
        "module.pt",
        "tokenizer.json",
    ]
    scorer = Path(export.__file__).parents[1] / "serving/scorer.py"
    program = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("scorer", {str(scorer)!r})
scorer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scorer)
answer = scorer.Scorer.load({str(folder)!r}).score(["what is a dog"])
loaded = [m for m in ("greenroom", "transformers", "mlflow") if m in sys.modules]
print(json.dumps([answer, loaded]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    answer, loaded = json.loads(done.stdout)
    assert loaded == []
    ids = torch.tensor([words.encode("what is a dog").ids])
    with torch.no_grad():
        expected = torch.softmax(model(ids, torch.ones_like(ids)), -1)[0]
    assert list(answer[0]["scores"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
