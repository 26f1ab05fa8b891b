"""The step `evaluate`: a registered version's own artifact on the unseen test split."""

from __future__ import annotations

import datetime
import json
import logging
import tempfile
from dataclasses import asdict
from pathlib import Path

from greenroom import names, tasks, tracking, versions
from greenroom.data.snapshot import Snapshot
from greenroom.errors import ConfigError, DataError, GateError, NotFoundError
from greenroom.serving.scorer import Scorer
from greenroom.specs import Condition, Request, StepResult
from greenroom.steps import common
from greenroom.steps.train import MODEL_ID, VERSION
from greenroom.training import evaluate as measuring
from greenroom.training import export, report

log = logging.getLogger(__name__)

# The metrics that become tags of the version, where a gate reads them.
GATED = ("accuracy", "f1_macro", "f1_weighted", "loss", "latency_p50_ms", "latency_p95_ms")
SCORER_PATH = "data/scorer"  # where MLflow keeps the scorer's folder inside the model


def run(request: Request, parent: str = "") -> StepResult:
    """Measures the version that a training run registered, and says so on the version."""
    experiment = request.experiment
    trained = (
        tracking.get_run(request.run) if request.run else tracking.latest("train", experiment.name)
    )
    for tag in (VERSION, MODEL_ID, tracking.SNAPSHOT, tracking.EXPERIMENT):
        if tag not in trained.data.tags:
            raise NotFoundError(f"run {trained.info.run_id} registered no version (no tag {tag})")
    if trained.data.tags[tracking.EXPERIMENT] != experiment.name:
        raise ConfigError(
            f"run: {trained.info.run_id} belongs to experiment "
            f"{trained.data.tags[tracking.EXPERIMENT]!r}, not {experiment.name!r}; give its file "
            "with experiment=FILE, or its name with name=NAME"
        )
    version = versions.get(experiment.name, trained.data.tags[VERSION])
    if version.run_id != trained.info.run_id:
        raise NotFoundError(
            f"version {version.version} of {version.model} is no longer that of run "
            f"{trained.info.run_id} but of {version.run_id}: the model was deleted and made anew"
        )
    snapshot = common.stored_snapshot(request, trained.data.tags[tracking.SNAPSHOT])
    if "test" not in snapshot.manifest.splits:
        raise DataError(
            f"snapshot {snapshot.id} has no test split; set data.test_fraction or give one in "
            "data.splits, and train again"
        )
    tags = {
        tracking.SNAPSHOT: snapshot.id,
        "greenroom.evaluated_run": trained.info.run_id,
        VERSION: version.version,
    }
    common.bury("evaluate", experiment.name)
    with (
        tempfile.TemporaryDirectory(prefix="greenroom-") as temporary,
        tracking.start_run("evaluate", version.model, tags=tags, parent=parent) as run,
    ):
        common.log_inputs(run, snapshot, "test")
        result = _measure(version, snapshot, experiment.task, Path(temporary))
        _log(run, result, snapshot.manifest.labels, Path(temporary))
        _publish(version, trained.data.tags[MODEL_ID], run.id, result, Path(temporary))
        _check_gate(version, experiment.evaluation.gate, result)
    log.info("version %s: %s", version.version, _shown(result))
    return StepResult("evaluate", run.id, snapshot.id, version.version, dict(result.metrics))


def _measure(
    version: versions.Version, snapshot: Snapshot, task_name: str, temporary: Path
) -> measuring.Evaluation:
    task, labels = tasks.load_task(task_name), snapshot.manifest.labels
    scorer = Scorer.load(versions.model_folder(version, temporary / "model"))
    rows = snapshot.split("test")
    return measuring.evaluate(
        scorer,
        rows["text"].to_pylist(),
        rows["label"].to_numpy().astype("int64"),
        lambda p, r: task.compute_metrics(p, r, labels),
    )


def _log(
    run: tracking.Run,
    result: measuring.Evaluation,
    labels: tuple[str, ...],
    temporary: Path,
) -> None:
    """The evaluation's own run: figures, per-label table, picture, probes."""
    per_label: dict[str, float] = {}
    for row in result.labels:
        name = metric_name(row.label)
        for key in ("precision", "recall", "f1", "support"):
            per_label[f"{key}/{name}"] = getattr(row, key)
    run.log_metrics({**result.metrics, **per_label})
    table = [{**asdict(row), "metric_name": metric_name(row.label)} for row in result.labels]
    run.log_dict(table, "labels.json")
    run.log_dict(
        {"labels": list(labels), "rows_are_true_labels": result.confusion.tolist()},
        "confusion.json",
    )
    run.log_artifact(report.confusion(result.confusion, labels, temporary / "confusion.png"))
    _probes_file(result, temporary)
    run.log_artifact(temporary / "probes" / export.PROBES)


def metric_name(label: str) -> str:
    """A label in the name of a metric; one that MLflow's 250 characters cannot hold is shortened
    (labels.json has both)."""
    return names.fit(names.encode(label), 200)


def _publish(
    version: versions.Version,
    model_id: str,
    run_id: str,
    result: measuring.Evaluation,
    temporary: Path,
) -> None:
    """Probes into the model, figures onto the version; the mark "evaluated" last, so that a kill
    in between leaves an unevaluated version, not a half-evaluated one."""
    tracking.add_to_model(model_id, temporary / "probes", SCORER_PATH)
    for key in GATED:
        if key in result.metrics:
            tag = f"{versions.METRIC}{key}"
            versions.set_tag(version.model, version.version, tag, repr(result.metrics[key]))
    versions.set_tag(version.model, version.version, "greenroom.evaluation.run_id", run_id)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    versions.set_tag(version.model, version.version, versions.EVALUATED, now)


def _probes_file(result: measuring.Evaluation, temporary: Path) -> None:
    folder = temporary / "probes"
    folder.mkdir()
    value = {"tolerance": measuring.PROBE_TOLERANCE, "probes": list(result.probes)}
    text = json.dumps(value, ensure_ascii=False, indent=1)
    (folder / export.PROBES).write_text(text + "\n", encoding="utf-8")


def _check_gate(
    version: versions.Version, gate: tuple[Condition, ...], result: measuring.Evaluation
) -> None:
    """Raises `GateError` for conditions of [evaluation.gate] that the results do not meet."""
    unmet = []
    for condition in gate:
        value = result.metrics.get(condition.metric)
        if value is None:
            known = ", ".join(sorted(result.metrics))
            unmet.append(f"{condition}: no metric {condition.metric!r}; there are: {known}")
        elif not condition.holds(value):
            unmet.append(f"{condition}: it is {value:.4g}")
    outcome = f"failed: {'; '.join(unmet)}" if unmet else "passed"
    if gate:
        versions.set_tag(version.model, version.version, "greenroom.gate", outcome)
    if unmet:
        raise GateError(
            f"{version.model} version {version.version} does not meet evaluation.gate: "
            f"{'; '.join(unmet)}. It stays registered; promote it only knowingly"
        )


def _shown(result: measuring.Evaluation) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in result.metrics.items())
