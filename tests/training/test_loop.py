"""The training loop against values computed another way: one batch, no tricks, no interruption."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from greenroom.errors import ConfigError, TrainingError
from greenroom.specs import Profile, TrainingSpec
from greenroom.training import checkpoint, loop, vocabulary
from greenroom.training.accelerator import choose

from . import toy

SPEC = TrainingSpec(
    epochs=3, batch_size=16, learning_rate=1e-2, precision="fp32", objective="accuracy", patience=0
)


def trained(spec: TrainingSpec, **options: float) -> tuple[dict[str, torch.Tensor], loop.Outcome]:
    job = toy.job(spec, **options)  # type: ignore[arg-type]
    outcome = loop.train(job)
    return toy.weights(job), outcome


def assert_equal(
    one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], limit: float = 0.0
) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value.shape == other[key].shape
        assert (value - other[key]).abs().max().item() <= limit, key


# -- the arithmetic ---------------------------------------------------------------------------


def test_two_steps_equal_a_plain_torch_loop() -> None:
    """No accelerate, no reduced embedding, no batch plan: AdamW on the whole batch, by hand."""
    spec = replace(SPEC, batch_size=100, max_steps=2, warmup_fraction=0.5, weight_decay=0.1)
    found, _ = trained(spec, dropout=0.0, validation=0)

    model, data = toy.model(dropout=0.0), toy.examples(100, 1)
    model.train()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    )
    ids, mask, labels = data.batch(torch.arange(100).numpy(), 0)
    for factor in (0.5, 1.0):  # one step of warm-up, then the top of the schedule
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * factor
        cross_entropy(model(ids, mask), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert_equal(found, dict(model.state_dict()), 2e-5)


def test_accumulated_micro_batches_equal_the_whole_batch() -> None:
    whole, _ = trained(replace(SPEC, micro_batch_size=16), dropout=0.0)
    parts, outcome = trained(replace(SPEC, micro_batch_size=5), dropout=0.0)
    assert outcome.hardware.accumulation == 4
    assert_equal(whole, parts, 1e-4)


def test_leaving_out_unused_embedding_rows_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(SPEC, weight_decay=0.5)
    reduced, one = trained(spec, dropout=0.0)
    monkeypatch.setattr(vocabulary, "reduce", lambda model, tokens, pad_id: None)
    whole, two = trained(spec, dropout=0.0)
    assert_equal(reduced, whole, 1e-5)
    start = toy.model(dropout=0.0).state_dict()["model.bert.embeddings.word_embeddings.weight"]
    rows = whole["model.bert.embeddings.word_embeddings.weight"]
    assert (rows[40] - start[40]).abs().max() > 1e-4, "weight decay moves the unused rows too"
    assert [r["train_loss"] for r in one.history] == pytest.approx(
        [r["train_loss"] for r in two.history], rel=1e-5
    )


def test_the_reduction_leaves_a_fully_used_table_alone() -> None:
    model = toy.model()
    tokens = torch.arange(toy.VOCABULARY).numpy().astype("int32")
    assert vocabulary.reduce(model, tokens, 0) is None
    owner = vocabulary.embedding_owner(model)
    assert owner is not None
    assert owner.get_input_embeddings().num_embeddings == toy.VOCABULARY


@pytest.mark.parametrize(
    "step, factor", [(0, 1 / 3), (1, 2 / 3), (2, 1.0), (6, 0.5), (10, 0.0), (11, 0.0)]
)
def test_linear_schedule(step: int, factor: float) -> None:
    assert loop.linear_schedule(step, 2, 10) == pytest.approx(factor)


def test_it_learns_and_keeps_the_best_epoch() -> None:
    job = toy.job(replace(SPEC, epochs=12))
    outcome = loop.train(job)
    values = [row["validation_accuracy"] for row in outcome.history]
    assert outcome.best_epoch == values.index(max(values)) + 1
    assert max(values) > 0.8
    assert outcome.history[-1]["train_loss"] < outcome.history[0]["train_loss"] / 2
    data = toy.examples(40, 2)
    ids, mask, labels = data.batch(torch.arange(40).numpy(), 0)
    with torch.no_grad():
        accuracy = (job.model(ids, mask).argmax(-1) == labels).float().mean().item()
    assert accuracy == pytest.approx(max(values)), "the model holds the best epoch's weights"


# -- when it ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("in_folder", [False, True])
def test_patience_stops_and_the_best_weights_return(tmp_path: Path, in_folder: bool) -> None:
    values = iter([0.5, 0.7, 0.6, 0.6, 0.9])
    job = toy.job(replace(SPEC, epochs=9, patience=2))
    job = replace(job, compute_metrics=lambda p, r: {"accuracy": next(values)})
    kept: list[dict[str, torch.Tensor]] = []
    outcome = loop.train(
        job,
        tmp_path / "c" if in_folder else None,
        lambda epoch, row: kept.append(toy.weights(job)),
    )
    assert len(outcome.history) == 4
    assert outcome.best_epoch == 2
    assert outcome.best["validation_accuracy"] == 0.7
    again = toy.job(replace(SPEC, epochs=9, patience=2))
    values = iter([0.5, 0.7, 0.0, 0.0])
    again = replace(again, compute_metrics=lambda p, r: {"accuracy": next(values)})
    loop.train(again)
    assert_equal(toy.weights(job), toy.weights(again))


def test_a_number_beats_nan() -> None:
    values = iter([math.nan, 0.9, 0.8])
    job = toy.job(replace(SPEC, epochs=3))
    job = replace(job, compute_metrics=lambda p, r: {"accuracy": next(values)})
    assert loop.train(job).best_epoch == 2


def test_an_objective_that_the_task_does_not_compute() -> None:
    job = replace(toy.job(SPEC), compute_metrics=lambda p, r: {"kappa": 1.0})
    with pytest.raises(TrainingError, match=r"no 'accuracy'; it computes: loss, kappa"):
        loop.train(job)


def test_weights_that_became_infinite_in_the_last_step() -> None:
    spec = replace(SPEC, max_steps=1, learning_rate=1e38, warmup_fraction=0.0, max_grad_norm=0.0)
    with pytest.raises(TrainingError, match="weights are not finite"):
        loop.train(toy.job(replace(spec, learning_rate=1e39), validation=0))


def test_inputs_come_in_the_order_of_the_keys() -> None:
    class Swapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = toy.model(dropout=0.0)

        def forward(self, attention_mask: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.inner(input_ids, attention_mask)
            return logits

    straight, expected = trained(SPEC, dropout=0.0)
    job = replace(
        toy.job(SPEC, dropout=0.0),
        model=Swapped(),
        input_keys=("attention_mask", "input_ids"),
    )
    assert loop.train(job).history == expected.history
    assert_equal({k[len("inner.") :]: v for k, v in toy.weights(job).items()}, straight)


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    _, outcome = trained(replace(SPEC, batch_size=100_000))
    assert (outcome.steps, outcome.hardware.accumulation) == (3, 4)


def test_two_precisions_in_one_process() -> None:
    for precision in ("bf16", "fp32"):
        _, outcome = trained(replace(SPEC, epochs=1, precision=precision))
        assert outcome.hardware.precision == precision


def test_max_steps_cuts_the_last_epoch() -> None:
    _, outcome = trained(replace(SPEC, max_steps=10))
    assert outcome.steps == 10
    assert len(outcome.history) == 2


def test_without_validation_the_last_epoch_is_kept() -> None:
    _, outcome = trained(SPEC, validation=0)
    assert outcome.best_epoch == 3
    assert set(outcome.best) == {"train_loss", "learning_rate"}


def test_loss_as_objective_takes_the_lowest() -> None:
    _, outcome = trained(replace(SPEC, epochs=6, objective="loss"))
    losses = [row["validation_loss"] for row in outcome.history]
    assert outcome.best_epoch == losses.index(min(losses)) + 1


def test_a_loss_that_is_no_number_is_one_clear_error() -> None:
    job = toy.job(SPEC)
    with torch.no_grad():
        next(job.model.parameters()).fill_(math.nan)
    with pytest.raises(TrainingError, match=r"training loss is nan at step 1 of 21.*learning_rate"):
        loop.train(job)


# -- interrupted ------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_resumed_after_an_epoch_it_ends_the_same(
    tmp_path: Path, after: int, precision: str
) -> None:
    spec = replace(SPEC, precision=precision)
    unkilled, expected = trained(spec)

    def kill(epoch: int, row: loop.Metrics) -> None:
        if epoch == after:
            raise Killed

    with pytest.raises(Killed):
        loop.train(toy.job(spec), tmp_path / "c", kill)
    seen: list[int] = []
    job = toy.job(spec)
    outcome = loop.train(job, tmp_path / "c", lambda epoch, row: seen.append(epoch))
    assert outcome.resumed
    assert seen == [1, 2, 3]
    assert outcome.history == expected.history
    assert outcome.best_epoch == expected.best_epoch
    assert_equal(toy.weights(job), unkilled)


@pytest.mark.parametrize("saves", [1, 4, 9])
def test_resumed_inside_an_epoch_it_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    monkeypatch.setattr(loop, "LOSS_EVERY", 2)
    unkilled, expected = trained(SPEC)
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)
    real, count = checkpoint.save, 0

    def save_then_kill(*args: object) -> Path:
        nonlocal count
        path = real(*args)  # type: ignore[arg-type]
        count += 1
        if count == saves:
            raise Killed
        return path

    monkeypatch.setattr(checkpoint, "save", save_then_kill)
    with pytest.raises(Killed):
        loop.train(toy.job(SPEC), tmp_path / "c")
    monkeypatch.setattr(checkpoint, "save", real)
    job = toy.job(SPEC)
    outcome = loop.train(job, tmp_path / "c")
    assert outcome.history == expected.history
    assert_equal(toy.weights(job), unkilled)


def test_a_checkpoint_that_was_being_written_is_no_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    (folder / "partial-000000007").mkdir(parents=True)
    job = toy.job(SPEC)
    outcome = loop.train(job, folder)
    assert not outcome.resumed
    assert len(list(folder.glob("step-*"))) == 1, "older checkpoints are removed"


def test_half_removed_checkpoints_are_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "c"
    loop.train(toy.job(SPEC), folder)

    def dies_at_once(path: Path, ignore_errors: bool = False) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", dies_at_once)
        with pytest.raises(Killed):
            checkpoint.remove(folder)
    assert not loop.train(toy.job(SPEC), folder).resumed
    checkpoint.remove(folder)
    assert list(tmp_path.iterdir()) == []


# -- hardware ---------------------------------------------------------------------------------


def test_hardware_that_is_not_here_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no hpu; it has"):
        choose(Profile("hpu", accelerator="hpu"), SPEC)
    with pytest.raises(ConfigError, match="fp16 needs a gpu"):
        choose(toy.CPU, replace(SPEC, precision="fp16"))


@pytest.mark.parametrize(
    "batch, micro, processes, expected",
    [(32, 0, 1, (32, 1)), (256, 0, 1, (32, 8)), (10, 4, 1, (4, 3)), (64, 0, 8, (8, 1))],
)
def test_a_global_batch_is_cut_into_micro_batches(
    batch: int, micro: int, processes: int, expected: tuple[int, int]
) -> None:
    hardware = choose(toy.CPU, replace(SPEC, batch_size=batch, micro_batch_size=micro), processes)
    assert (hardware.micro_batch_size, hardware.accumulation) == expected
