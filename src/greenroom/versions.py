"""Registered models, their versions, stages and aliases. With `tracking`, the only module that
speaks to MLflow.

Called by `steps` (register, tag), `deploy` (what should be served) and `cli`. Every function takes
a model's own name; MLflow holds `names.encode` of it. Functions that promote, look or download
raise `NotFoundError` for what does not exist, and `RetryableError` when the registry does not
answer.

A look at a model costs two requests whatever the number of its versions. `search_model_versions`
knows neither stages nor aliases, and `get_registered_model` gives of each stage the version with
the highest number, which need not be the one promoted last.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.models import Model as MlflowModel
from sqlalchemy.exc import SQLAlchemyError

from greenroom import interrupts, names, specs
from greenroom.errors import (
    DeployError,
    NotFoundError,
    RetryableError,
    UserError,
    first_line,
    nearest,
)

STAGES = ("None", "Staging", "Production", "Archived")
EVALUATED, METRIC = "greenroom.evaluated", "greenroom.metric."
SNAPSHOT, COMMIT = "greenroom.snapshot", "greenroom.git_commit"

# How far back a look sees, in versions by latest change: enough that only a stage with two
# versions, the older number promoted last, and 200 later changes elsewhere would be misread.
RECENT = 200
GONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # asking again changes nothing


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    model: str
    version: str
    run_id: str
    stage: str
    aliases: tuple[str, ...]
    tags: Mapping[str, str]
    source: str
    created: str  # ISO 8601, UTC
    updated: str  # the latest stage change (or edit of the description)
    updated_ms: int = 0
    description: str = ""
    ready: bool = True

    @property
    def evaluated(self) -> bool:
        """Whether `evaluate` has measured this version."""
        return EVALUATED in self.tags

    @property
    def metrics(self) -> dict[str, float]:
        """What evaluation measured on unseen data."""
        values = {k[len(METRIC) :]: v for k, v in self.tags.items() if k.startswith(METRIC)}
        return {key: float(value) for key, value in values.items() if _is_number(value)}


def _is_number(text: str) -> bool:
    """Anyone may edit a tag in MLflow's UI."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Model:
    """A registered model as one look saw it."""

    name: str
    tags: Mapping[str, str]
    aliases: Mapping[str, str]  # alias -> version
    seen: tuple[Version, ...]  # of every stage the latest, and the recently changed

    def in_stage(self, stage: str) -> tuple[Version, ...]:
        """The versions of a stage, the one that came there last first: that one counts."""
        found = [v for v in self.seen if v.stage == stage]
        return tuple(sorted(found, key=lambda v: (v.updated_ms, int(v.version)), reverse=True))

    def conflict(self, stage: str) -> str:
        """Says which of several versions in one stage counts; "" when there is at most one."""
        first, *others = self.in_stage(stage) or (None,)
        if not first or not others or stage not in ("Staging", "Production"):
            return ""
        more = ", ".join(v.version for v in others)
        return (
            f"{self.name}: versions {first.version} and {more} are all in {stage}; "
            f"{first.version} got there last and counts"
        )


# -- looking ----------------------------------------------------------------------------------


def look(name: str) -> Model:
    """The model with its aliases and the versions that a stage can select."""
    with _answers(name):
        found = _client().get_registered_model(names.encode(name))
        recent = _client().search_model_versions(
            f"name = '{names.encode(name)}'",
            max_results=RECENT,
            order_by=["last_updated_timestamp DESC"],
        )
    aliases = {str(a): str(v) for a, v in found.aliases.items()}
    rows = {str(v.version): v for v in [*found.latest_versions, *recent]}
    seen = tuple(_version(name, row, aliases) for row in rows.values())
    return Model(name, dict(found.tags), aliases, seen)


def get(name: str, version: str | int) -> Version:
    """One version; a wrong one is answered with those that exist."""
    try:
        with _answers(name, str(version)):
            row = _client().get_model_version(names.encode(name), str(int(version)))
            aliases = _client().get_registered_model(names.encode(name)).aliases
    except ValueError:
        raise NotFoundError(f"{name}: {version!r} is not a version; write its number") from None
    return _version(name, row, {str(a): str(v) for a, v in aliases.items()})


def latest(name: str) -> Version:
    """The version with the highest number."""
    seen = look(name).seen
    if not seen:
        raise NotFoundError(f"model {name!r} has no version; make one with: mlflow run . -e train")
    return get(name, max(int(v.version) for v in seen))


def desired(name: str, *, stage: str = "", alias: str = "") -> Version | None:
    """The version that a stage (the latest transition wins) or an alias selects, if any."""
    return select(look(name), stage=stage, alias=alias)


def select(model: Model, *, stage: str = "", alias: str = "") -> Version | None:
    """The same within a look that was taken."""
    if stage:
        return next(iter(model.in_stage(stage)), None)
    number = model.aliases.get(alias)
    if number is None:
        return None
    seen = next((v for v in model.seen if v.version == number), None)
    return seen or get(model.name, number)


def of_run(name: str, run_id: str) -> Version | None:
    """The version that a run registered, if it has."""
    with _answers(name):
        rows = _client().search_model_versions(f"run_id = '{run_id}'")
    return next((_version(name, r, {}) for r in rows if r.name == names.encode(name)), None)


def list_models() -> tuple[str, ...]:
    """The names of all registered models, for messages and completion."""
    with _answers(""):
        rows = _client().search_registered_models(max_results=1000)
    return tuple(names.decode(row.name) for row in rows)


# -- changing ---------------------------------------------------------------------------------


def register(
    name: str, model_uri: str, run_id: str = "", tags: Mapping[str, str] | None = None
) -> Version:
    """A new version of `name` (made if it is new) from a logged model, `models:/m-...`."""
    encoded = names.encode(name)
    with _writing(name):
        try:
            _client().create_registered_model(encoded)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        row = _client().create_model_version(
            encoded,
            source=model_uri,
            run_id=run_id or None,
            tags=dict(tags or {}),
            model_id=_model_id(model_uri),  # over REST a logged model's source is refused without
        )
    return get(name, row.version)


def _model_id(model_uri: str) -> str | None:
    """The logged model of `models:/m-...`; None for any other source."""
    last = model_uri.rpartition("/")[2]
    return last if model_uri.startswith("models:/m-") else None


def promote(name: str, version: str | int, *, stage: str = "", alias: str = "") -> Version:
    """Moves a version to a stage (archiving those there, as MLflow's UI offers) or gives it an
    alias; stage "None" or "Archived" takes it off the stage that it has."""
    if bool(stage) == bool(alias):
        raise UserError("give either a stage or an alias")
    if stage and stage not in STAGES:
        raise UserError(f"unknown stage {stage!r}; {nearest(stage, STAGES)}")
    if alias != alias.lower():  # deployments.toml can name none such
        raise UserError(f"alias {alias!r}: write it in lower case, as MLflow's UI does")
    found = get(name, version)
    with _writing(name, found.version):
        if alias:
            _client().set_registered_model_alias(names.encode(name), alias, found.version)
        else:
            _transition(name, found.version, stage)
    return get(name, version)


def drop_alias(name: str, alias: str) -> None:
    """Takes an alias off whichever version has it."""
    aliases = look(name).aliases
    if alias not in aliases:
        raise NotFoundError(f"{name} has no alias {alias!r}; {nearest(alias, aliases)}")
    with _writing(name):
        _client().delete_registered_model_alias(names.encode(name), alias)


def set_tag(name: str, version: str, key: str, value: str) -> None:
    """A tag on a version."""
    with _writing(name, version):
        _client().set_model_version_tag(names.encode(name), version, key, value)


def set_model_tag(name: str, key: str, value: str) -> None:
    """A tag on the registered model itself; "" removes it."""
    with _writing(name):
        if value:
            _client().set_registered_model_tag(names.encode(name), key, value)
        elif key in _client().get_registered_model(names.encode(name)).tags:
            _client().delete_registered_model_tag(names.encode(name), key)


def _transition(name: str, version: str, stage: str) -> None:
    with warnings.catch_warnings():
        # "deprecated since 2.9", and yet what the stage menu of MLflow 3's own UI calls. Half of
        # its users promote by stage: as long as it works, greenroom follows it.
        warnings.filterwarnings("ignore", r".*transition_model_version_stage", FutureWarning)
        _client().transition_model_version_stage(
            names.encode(name),
            version,
            stage,
            archive_existing_versions=stage in ("Staging", "Production"),
        )


# -- files ------------------------------------------------------------------------------------


def model_folder(version: Version, into: Path | None = None) -> Path:
    """A copy of the version's scorer folder, below `into` (default: a new temporary folder).

    Raises `DeployError` for a version whose files are gone or are no greenroom model, and
    `RetryableError` when the store does not answer.
    """
    into = into or Path(tempfile.mkdtemp(prefix="greenroom-model-"))
    which = f"{version.model} version {version.version}"
    try:
        root = Path(mlflow.artifacts.download_artifacts(version.source, dst_path=str(into)))
        pyfunc = MlflowModel.load(str(root)).flavors["python_function"]
    except (MlflowException, OSError) as error:
        gone = isinstance(error, OSError) or error.error_code in GONE
        kind = DeployError if gone else RetryableError
        raise kind(f"{which}: its files ({version.source}) are not to be had: {error}") from error
    except KeyError:
        pyfunc = {}
    folder = root / str(pyfunc.get("data", ""))
    if not (folder / "greenroom.json").is_file():
        raise DeployError(f"{which}: not a model of greenroom ({version.source} has no scorer)")
    return folder


def package_key(version: Version) -> str:
    """A name for the version's files as they are now: evaluation adds the probes to them."""
    state = f"{version.source}\n{version.tags.get(EVALUATED, '')}"
    return (
        f"{names.encode(version.model)}-v{version.version}-{sha256(state.encode()).hexdigest()[:8]}"
    )


# -- production -------------------------------------------------------------------------------


def production(
    name: str, version: Version | None = None, endpoints: Sequence[Mapping[str, Any]] = ()
) -> specs.Production:
    """The version in stage Production (or `version`, where a caller knows what is served), with
    its run: parameters, and metrics, evaluation's on unseen data before the run's own."""
    version = version or desired(name, stage="Production")
    if version is None:
        aliases = look(name).aliases
        others = ", ".join(f"{a} -> {v}" for a, v in sorted(aliases.items())) or "none"
        raise NotFoundError(
            f"no version of {name!r} is in Production (aliases: {others}); "
            f"promote one with: greenroom promote {name!r} VERSION --stage Production"
        )
    parameters, metrics = _run_values(version.run_id)
    return specs.Production(
        model=name,
        version=version.version,
        stage=version.stage,
        aliases=version.aliases,
        since=version.updated,
        run_id=version.run_id,
        parameters=parameters,
        metrics={**metrics, **version.metrics},
        snapshot=version.tags.get(SNAPSHOT, ""),
        git_commit=version.tags.get(COMMIT, ""),
        endpoints=tuple(endpoints),
    )


def _run_values(run_id: str) -> tuple[dict[str, str], dict[str, float]]:
    """Parameters and metrics of a run; none for one that was deleted since."""
    if not run_id:
        return {}, {}
    with _answers(""):
        try:
            data = _client().get_run(run_id).data
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return {}, {}
    return {names.decode(k): str(v) for k, v in data.params.items()}, dict(data.metrics)


# -- MLflow -----------------------------------------------------------------------------------


def _client() -> MlflowClient:
    return MlflowClient()


@contextlib.contextmanager
def _answers(name: str, version: str = "") -> Iterator[None]:
    """MLflow's errors as ours, with what exists instead of what does not."""
    try:
        yield
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise NotFoundError(_missing(name, version)) from error
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise UserError(f"{name}: MLflow refuses this: {error.message}") from error
        raise RetryableError(
            f"the registry {mlflow.get_registry_uri()} does not answer: {error.message}"
        ) from error
    except SQLAlchemyError as error:  # a file that is no database, of which MLflow says nothing
        raise RetryableError(
            f"the registry {mlflow.get_registry_uri()} cannot be read: {first_line(error)}"
        ) from error


@contextlib.contextmanager
def _writing(name: str, version: str = "") -> Iterator[None]:
    """The same for a write, which an interrupt does not cut in two; a read ends at once."""
    with _answers(name, version), interrupts.deferred():
        yield


def _missing(name: str, version: str) -> str:
    models = list_models()
    if name not in models:
        return f"no registered model {name!r}; {nearest(name, models)}"
    numbers = sorted((int(v.version) for v in look(name).seen), reverse=True)
    shown = ", ".join(map(str, numbers[:20])) or "(none)"
    return f"model {name!r} has no version {version}; valid: {shown}"


def _version(name: str, row: Any, aliases: Mapping[str, str]) -> Version:
    version = str(row.version)
    return Version(
        model=name,
        version=version,
        run_id=row.run_id or "",
        stage=row.current_stage or "None",
        aliases=tuple(sorted(a for a, v in aliases.items() if v == version)),
        tags=dict(row.tags),
        source=row.source or "",
        created=_iso(row.creation_timestamp),
        updated=_iso(row.last_updated_timestamp),
        updated_ms=int(row.last_updated_timestamp or 0),
        description=row.description or "",
        ready=row.status == "READY",
    )


def _iso(ms: int | None) -> str:
    return datetime.fromtimestamp((ms or 0) / 1000, timezone.utc).isoformat(timespec="milliseconds")
