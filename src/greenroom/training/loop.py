"""The training loop: one model, one snapshot, one `TrainingSpec`. Knows nothing of MLflow.

Called by `steps.train`, by each trial of a search, and by benchmarks. The order follows the
Accelerate documentation's loop: prepare, accumulate, backward, clip, step, gather_for_metrics.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from tqdm import tqdm

from greenroom.errors import TrainingError
from greenroom.specs import Profile, TrainingSpec
from greenroom.training import accelerator as devices
from greenroom.training import checkpoint, vocabulary
from greenroom.training.batches import (
    Encoded,
    MicroBatch,
    TrainingBatches,
    epoch_plan,
)
from greenroom.training.checkpoint import Progress
from greenroom.training.predict import forward_inputs, predict, validation_loader

log = logging.getLogger(__name__)

Metrics = Mapping[str, float]
ComputeMetrics = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Metrics]

# A checkpoint of a small model takes a tenth of a second, of a large one some seconds: at most this
# much work is done again after a kill.
CHECKPOINT_EVERY_S = 60.0
# Reading the loss waits for the device, so it is looked at only so often.
LOSS_EVERY = 10


@dataclass(frozen=True)
class Job:
    """What is to be trained, on what."""

    model: nn.Module  # forward(*input_keys), each [B, T] -> logits [B, C]; changed by training
    train: Encoded
    validation: Encoded | None  # None: train for the given epochs and keep the last
    spec: TrainingSpec
    profile: Profile
    pad_id: int
    compute_metrics: ComputeMetrics
    input_keys: tuple[str, ...] = ("input_ids", "attention_mask")  # of forward(), in its order


@dataclass(frozen=True)
class Outcome:
    """A finished training: `job.model` is then on the CPU with the best epoch's weights."""

    best_epoch: int
    history: tuple[Metrics, ...]  # a row for each epoch: train_loss, validation metrics, lr
    steps: int
    samples_per_s: float  # training alone, without validation and checkpoints
    hardware: devices.Hardware
    resumed: bool

    @property
    def best(self) -> Metrics:
        """The best epoch's row."""
        return self.history[self.best_epoch - 1]


def train(
    job: Job,
    folder: Path | None = None,
    on_epoch: Callable[[int, Metrics], None] = lambda epoch, row: None,
) -> Outcome:
    """Trains `job.model` to its best epoch, going on from a checkpoint in `folder` if one is there.

    `on_epoch(epoch, row)` is called once for each epoch on the main process, for those before a
    resume as well. Raises `TrainingError` when the loss is no longer finite.
    """
    trainer = _Trainer(job, folder)
    return trainer.run(on_epoch)


class _Trainer:
    """The state of one training run; its methods are the parts of the loop."""

    def __init__(self, job: Job, folder: Path | None) -> None:
        self.job, self.spec, self.folder = job, job.spec, folder
        set_seed(self.spec.seed)
        processes = devices.processes()
        self.hardware = devices.choose(job.profile, self.spec, processes, len(job.train))
        self.accelerator = devices.make(self.hardware)
        train, validation = job.train, job.validation
        if validation is not None and not len(validation):
            validation = None
        tokens = np.concatenate([d.tokens for d in (train, validation) if d is not None])
        self.reduction = vocabulary.reduce(job.model, tokens, job.pad_id)
        if self.reduction is not None:
            train = train.renumbered(self.reduction.new_ids)
            if validation is not None:
                validation = validation.renumbered(self.reduction.new_ids)
        self.pad_id = (
            job.pad_id if self.reduction is None else int(self.reduction.new_ids[job.pad_id])
        )
        self.train_data, self.validation = train, self._prepared_loader(validation)
        self.steps_per_epoch = -(-len(train) // self.spec.batch_size)
        self.total_steps = self.spec.max_steps or self.spec.epochs * self.steps_per_epoch
        self.epochs = -(-self.total_steps // self.steps_per_epoch)
        self.model, self.optimizer, self.scheduler = self._prepare(job.model)
        self.train_seconds, self.train_examples, self._applied_lr = 0.0, 0, 0.0
        self._kept_best: dict[str, torch.Tensor] = {}

    def _prepare(self, model: nn.Module) -> tuple[nn.Module, Any, Any]:
        optimizer = torch.optim.AdamW(
            parameter_groups(model, self.spec.weight_decay),
            lr=self.spec.learning_rate,
            fused=self.hardware.accelerator in ("cpu", "gpu"),
        )
        warmup = int(self.spec.warmup_fraction * self.total_steps)
        prepared, prepared_optimizer = self.accelerator.prepare(model, optimizer)
        # Not prepared: accelerate would step it once for each process.
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: linear_schedule(step, warmup, self.total_steps)
        )
        return prepared, prepared_optimizer, scheduler

    def _prepared_loader(self, data: Encoded | None) -> DataLoader[Any] | None:
        if data is None:
            return None
        loader = validation_loader(data, self.pad_id, self.hardware.length_multiple)
        return self.accelerator.prepare_data_loader(loader)

    # -- the whole ----------------------------------------------------------------------------

    def run(self, on_epoch: Callable[[int, Metrics], None]) -> Outcome:
        progress = self._resume()
        resumed = progress.step > 0
        main = self.accelerator.is_main_process
        for epoch, row in enumerate(progress.history, 1):
            if main:
                on_epoch(epoch, row)
        with self._progress_bar(progress) as bar:
            while progress.step < self.total_steps and not self._stops(progress):
                progress = self._epoch(progress, bar)
                if main:
                    on_epoch(progress.epoch, progress.history[-1])
        self._finish(progress)
        return Outcome(
            progress.best_epoch,
            progress.history,
            progress.step,
            self.train_examples / self.train_seconds if self.train_seconds else 0.0,
            self.hardware,
            resumed,
        )

    def _resume(self) -> Progress:
        found = self.folder and checkpoint.load(self.accelerator, self.folder, self.scheduler)
        if found:
            log.info("resuming after step %d of %d", found.step, self.total_steps)
        return found or Progress()

    def _stops(self, progress: Progress) -> bool:
        """Whether patience is over: that many epochs in a row without a better objective."""
        waited = progress.epoch - progress.best_epoch
        return bool(
            self.validation is not None
            and self.spec.patience
            and progress.best_epoch
            and waited >= self.spec.patience
        )

    def _finish(self, progress: Progress) -> None:
        """Puts the best epoch's weights, the embedding whole again, into `job.model` on the CPU."""
        self.accelerator.wait_for_everyone()
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        model.to("cpu")
        state, decay = self._best_state(model, progress)
        if self.reduction is None:
            model.load_state_dict(state)
        else:
            vocabulary.restore(model, self.reduction, state, decay)
        model.eval()
        self.accelerator.free_memory()
        if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
            raise TrainingError(
                f"the trained weights are not finite (learning_rate {self.spec.learning_rate:g}, "
                f"{self.hardware.precision}); try a lower training.learning_rate"
            )

    def _best_state(
        self, model: nn.Module, progress: Progress
    ) -> tuple[dict[str, torch.Tensor], float]:
        if progress.best_epoch == progress.epoch:
            return dict(model.state_dict()), progress.decay
        if self.folder is None:
            return self._kept_best, progress.best_decay
        file = self.folder / checkpoint.best_name(progress.best_epoch)
        return torch.load(file, weights_only=True), progress.best_decay

    # -- one epoch ----------------------------------------------------------------------------

    def _epoch(self, progress: Progress, bar: tqdm[Any]) -> Progress:
        epoch = progress.epoch
        last = min(self.steps_per_epoch, self.total_steps - epoch * self.steps_per_epoch)
        plan = self._plan(epoch)
        sizes = [int(batch[0].total) for batch in plan]
        loader = self._loader(plan[progress.batch :])
        self.model.train()
        saved, started = time.monotonic(), time.perf_counter()
        micro_losses: list[torch.Tensor] = []
        losses: list[torch.Tensor] = []
        for batch in loader:
            micro_losses.append(self._micro_step(batch))
            if not self.accelerator.sync_gradients:
                continue
            losses.append(torch.stack(micro_losses).sum())
            micro_losses = []
            decay = progress.decay * (1 - self._applied_lr * self.spec.weight_decay)
            progress = replace(
                progress, batch=progress.batch + 1, step=progress.step + 1, decay=decay
            )
            bar.update(sizes[progress.batch - 1])
            self.train_examples += sizes[progress.batch - 1]
            done = progress.batch == last
            if len(losses) == LOSS_EVERY or done:
                progress = self._read_losses(progress, losses, bar)
                losses = []
            if done:
                break
            if self.folder and not losses and time.monotonic() - saved > CHECKPOINT_EVERY_S:
                self._clock(started)
                checkpoint.save(self.accelerator, self.folder, progress, self.scheduler)
                saved, started = time.monotonic(), time.perf_counter()
        self._clock(started)
        return self._end_epoch(progress)

    def _plan(self, epoch: int) -> list[list[MicroBatch]]:
        parts = self.hardware.accumulation * self.accelerator.num_processes
        return epoch_plan(
            self.train_data.lengths, self.spec.batch_size, parts, self.spec.seed, epoch
        )

    def _loader(self, plan: Sequence[list[MicroBatch]]) -> DataLoader[dict[str, torch.Tensor]]:
        """This process's micro-batches of the planned ones."""
        count, rank = self.accelerator.num_processes, self.accelerator.process_index
        mine = [micro for batch in plan for micro in batch[rank::count]]
        data = TrainingBatches(self.train_data, mine, self.pad_id, self.hardware.length_multiple)
        # A generator of its own: torch draws a seed at each start, from the generator that drives
        # dropout, and a resumed epoch starts its loader once more than an unkilled one.
        return DataLoader(data, batch_size=None, generator=torch.Generator())

    def _micro_step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Forward and backward of one micro-batch, and the optimiser step when it is the last.

        Returns this process's share of the global batch's mean loss.
        """
        batch = {key: value.to(self.accelerator.device) for key, value in batch.items()}
        with self.accelerator.accumulate(self.model):
            logits = self.model(*forward_inputs(self.job.input_keys, batch))
            each = cross_entropy(logits.float(), batch["labels"], reduction="none")
            loss = (each * batch["weights"]).sum()
            # backward divides by the accumulation steps and DDP by the processes: undone here, so
            # that the gradient is that of the mean over the whole global batch.
            scale = self.hardware.accumulation * self.accelerator.num_processes
            self.accelerator.backward(loss * scale)
            if self.accelerator.sync_gradients:
                if self.spec.max_grad_norm:
                    self.accelerator.clip_grad_norm_(
                        self.model.parameters(), self.spec.max_grad_norm
                    )
                self._applied_lr = float(self.scheduler.get_last_lr()[0])
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
        return loss.detach()

    def _read_losses(
        self, progress: Progress, losses: Sequence[torch.Tensor], bar: tqdm[Any]
    ) -> Progress:
        values = self.accelerator.reduce(torch.stack(list(losses)), reduction="sum").tolist()
        for i, value in enumerate(values):
            if not math.isfinite(value):
                step = progress.step - len(values) + i + 1
                raise TrainingError(
                    f"the training loss is {value} at step {step} of {self.total_steps} "
                    f"(learning_rate {self.spec.learning_rate:g}, {self.hardware.precision}); try "
                    "a lower training.learning_rate, training.precision=fp32 or max_grad_norm=1"
                )
        bar.set_postfix(loss=f"{values[-1]:.4f}", refresh=False)
        return replace(progress, loss_sum=progress.loss_sum + sum(values))

    def _end_epoch(self, progress: Progress) -> Progress:
        row = {
            "train_loss": progress.loss_sum / progress.batch,
            "learning_rate": self._applied_lr,
            **self._validate(),
        }
        epoch = progress.epoch + 1
        value = row.get(f"validation_{self.spec.objective}")
        if value is None and self.validation is not None:
            known = ", ".join(k[len("validation_") :] for k in row if k.startswith("validation_"))
            raise TrainingError(
                f"training.objective: the task computes no {self.spec.objective!r}; it computes: "
                f"{known}"
            )
        better = (
            value is None
            or not progress.best_epoch
            or is_better(self.spec.objective, value, progress.best_value)
        )
        progress = replace(
            progress,
            epoch=epoch,
            batch=0,
            loss_sum=0.0,
            history=(*progress.history, row),
            best_epoch=epoch if better else progress.best_epoch,
            best_value=(value or 0.0) if better else progress.best_value,
            best_decay=progress.decay if better else progress.best_decay,
        )
        self._keep(progress, better)
        return progress

    def _keep(self, progress: Progress, better: bool) -> None:
        """Keeps the weights if they are the best so far, and a checkpoint to go on from."""
        may_be_worse_later = self.validation is not None and progress.epoch < self.epochs
        if better and may_be_worse_later and self.accelerator.is_main_process:
            # With the wrapper left on: taken off, it takes the autocast of every later step along.
            state = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=True).state_dict()
            if self.folder is None:
                self._kept_best = {key: value.cpu().clone() for key, value in state.items()}
            else:
                checkpoint.save_best(self.folder, progress.epoch, state)
        if self.folder is not None:
            checkpoint.save(self.accelerator, self.folder, progress, self.scheduler)

    def _validate(self) -> Metrics:
        if self.validation is None:
            return {}
        predictions, references, loss = predict(
            self.accelerator, self.model, self.validation, self.job.input_keys
        )
        metrics = {"loss": loss, **self.job.compute_metrics(predictions, references)}
        return {f"validation_{key}": float(value) for key, value in metrics.items()}

    def _clock(self, started: float) -> None:
        self.train_seconds += time.perf_counter() - started

    def _progress_bar(self, progress: Progress) -> tqdm[Any]:
        return tqdm(
            total=self.epochs * len(self.train_data),
            initial=progress.epoch * len(self.train_data) + progress.batch * self.spec.batch_size,
            unit="samples",
            mininterval=5.0,
            disable=not self.accelerator.is_main_process,
            desc="train",
        )


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices and embeddings, none for biases and normalisation, as BERT's."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def linear_schedule(step: int, warmup: int, total: int) -> float:
    """The factor on the learning rate: up to 1 over `warmup` steps, then down to 0 at `total`."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return max(0.0, (total - step) / max(1, total - warmup))


def is_better(objective: str, value: float, best: float) -> bool:
    """Whether `value` beats `best`: less for a loss, more for anything else. NaN beats nothing, and
    any number beats NaN.
    """
    if math.isnan(best):
        return not math.isnan(value)
    return value < best if objective == "loss" else value > best
