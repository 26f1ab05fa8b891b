"""What `train` and every trial of a search share: the job, its artifact, its MLflow model."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from greenroom import tracking
from greenroom.errors import ConfigError
from greenroom.serving import scorer as scorer_module
from greenroom.specs import Profile, TrainingSpec
from greenroom.steps.common import Prepared
from greenroom.training import accelerator, export, loop, report
from greenroom.training.batches import Encoded

log = logging.getLogger(__name__)


_KEYS = ("input_ids", "attention_mask", "token_type_ids")


def check(prepared: Prepared, spec: TrainingSpec, profile: Profile) -> None:
    """Raises `ConfigError` for what cannot be trained here, before a run is started."""
    accelerator.choose(profile, spec)
    keys = prepared.task.input_keys()
    unknown = [key for key in keys if key not in _KEYS]
    if unknown or "input_ids" not in keys:
        raise ConfigError(
            f"task {prepared.task.name!r}: input_keys() gives {tuple(keys)!r}; valid: "
            f"{', '.join(_KEYS)}, input_ids among them"
        )


def make_job(prepared: Prepared, spec: TrainingSpec, profile: Profile) -> loop.Job:
    """The training of the prepared model on its snapshot with these values."""
    snapshot, task = prepared.snapshot, prepared.task
    manifest = snapshot.manifest
    labels = manifest.labels
    model = task.load_model(prepared.source, labels, manifest.tokenizer.vocab_size, spec.seed)
    splits = [snapshot.split("train")]
    validation = None
    if "validation" in manifest.splits:
        if spec.use_validation:
            splits.append(snapshot.split("validation"))
        else:
            validation = Encoded.from_table(snapshot.split("validation"))
    return loop.Job(
        model=model,
        train=Encoded.from_table(*splits),
        validation=validation,
        spec=spec,
        profile=profile,
        pad_id=manifest.pad_id,
        compute_metrics=lambda p, r: task.compute_metrics(p, r, labels),
        input_keys=tuple(task.input_keys()),
    )


def log_epoch(run: tracking.Run, seen: frozenset[int] = frozenset()) -> Any:
    """The callback that writes an epoch's row to the run, once."""

    def write(epoch: int, row: loop.Metrics) -> None:
        shown = ", ".join(f"{key} {value:.4g}" for key, value in row.items())
        log.info("epoch %d: %s", epoch, shown)
        if epoch not in seen:
            run.log_metrics(row, epoch)

    return write


def log_outcome(run: tracking.Run, outcome: loop.Outcome) -> None:
    """The best epoch's figures without a step, the speed, the curves."""
    best = {f"best_{k}": v for k, v in outcome.best.items() if k.startswith("validation_")}
    extra: dict[str, float] = {"best_epoch": outcome.best_epoch, "steps": outcome.steps}
    if outcome.samples_per_s:
        extra["samples_per_s"] = outcome.samples_per_s
    run.log_metrics({**best, **extra})
    run.set_tags(
        {
            "greenroom.accelerator": outcome.hardware.accelerator,
            "greenroom.precision": outcome.hardware.precision,
        }
    )
    with tempfile.TemporaryDirectory(prefix="greenroom-") as temporary:
        report.curves(outcome.history, outcome.best_epoch, Path(temporary) / "curves")
        run.log_artifact(Path(temporary) / "curves", "curves")


def write_artifact(
    prepared: Prepared, job: loop.Job, outcome: loop.Outcome, run_id: str, folder: Path
) -> export.Parity:
    """Traces the trained model into the scorer's `folder`; raises `ParityError` if it differs."""
    manifest, experiment = prepared.snapshot.manifest, prepared.experiment
    keys = prepared.task.input_keys()
    vocabulary, limit = manifest.tokenizer.vocab_size, manifest.max_length
    traced = export.trace(job.model, keys, vocabulary, limit)
    parity = export.parity(traced, job.model, keys, vocabulary, limit)
    log.info("traced module equals the eager one within %.1e", parity.max_difference)
    facts = {
        "base model": prepared.source.source,
        "experiment": experiment.name,
        "run": run_id,
        "data": f"{manifest.source}, snapshot {prepared.snapshot.id}",
        "training examples": str(len(job.train)),
        "best epoch": str(outcome.best_epoch),
        "longest input": f"{limit} tokens; longer texts are cut",
        "traced against eager": f"differs by at most {parity.max_difference:.1e} in a logit",
    }
    meta = {
        "task": experiment.task,
        "labels": list(manifest.labels),
        "input_keys": list(keys),
        "max_length": limit,
        "pad_id": manifest.pad_id,
        "text": experiment.data.text,
        "model": prepared.source.source,
        "run_id": run_id,
        "snapshot": prepared.snapshot.id,
        "experiment": experiment.name,
    }
    card = report.card(experiment.name, facts, manifest.labels, outcome.best)
    export.write_folder(folder, traced, prepared.snapshot.tokenizer_file, meta, card)
    return parity


def log_model(prepared: Prepared, run: tracking.Run, folder: Path) -> tracking.LoggedModel:
    """Logs the scorer's folder as a complete MLflow model of the run."""
    field = prepared.experiment.data.text
    example = prepared.snapshot.split("train")["text"][0].as_py()
    with tempfile.TemporaryDirectory(prefix="greenroom-") as temporary:
        loader = _loader_copy(Path(temporary))
        return tracking.log_model(
            run,
            folder,
            loader,
            text=field,
            example=example,
            requirements=export.requirements(),
            metadata=prepared.tags(),
        )


def _loader_copy(folder: Path) -> Path:
    """The scorer's source under a name of its content: models of two releases load side by side."""
    source = Path(scorer_module.__file__)
    name = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    return Path(shutil.copyfile(source, folder / f"greenroom_scorer_{name}.py"))


def version_tags(prepared: Prepared, extra: Mapping[str, str]) -> dict[str, str]:
    """The lineage that a registered version carries."""
    return {
        **prepared.tags(),
        tracking.EXPERIMENT: prepared.experiment.name,
        tracking.COMMIT: tracking.git_commit(),
        **extra,
    }
