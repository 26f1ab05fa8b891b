"""Hardware profiles, built in or of hardware.toml -> `specs.Profile`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from greenroom import specs
from greenroom.config.tables import read_toml, section
from greenroom.errors import ConfigError, nearest
from greenroom.fields import Check, Override, at_least, build, one_of

PLACES = ("local",)

CHECKS: Mapping[str, Check] = {
    "place": one_of(*PLACES),
    "accelerator": one_of("", "cpu", "gpu", "hpu"),
    "threads": at_least(0),
}

BUILT_IN_PROFILES: Mapping[str, specs.Profile] = {
    "local": specs.Profile("local"),
    "cpu": specs.Profile("cpu", accelerator="cpu"),
    "gpu": specs.Profile("gpu", accelerator="gpu"),
    "hpu": specs.Profile("hpu", accelerator="hpu"),
}


def load_profile(
    name: str, path: str | Path = "hardware.toml", overrides: Mapping[str, str] | None = None
) -> specs.Profile:
    """The hardware profile `name`: built in, or of the file at `path`."""
    tables = read_toml(Path(path)) if Path(path).exists() else {}
    if name not in tables and name not in BUILT_IN_PROFILES:
        raise ConfigError(
            f"hardware: unknown profile {name!r}; {nearest(name, {*tables, *BUILT_IN_PROFILES})}"
        )
    problems: list[str] = []
    base = specs.as_plain(BUILT_IN_PROFILES.get(name, specs.Profile(name)))
    extra = {key: Override(text) for key, text in (overrides or {}).items()}
    table = {**base, **section(tables, name, problems), **extra}
    table.pop("name")
    profile = build(specs.Profile, table, f"hardware {name}", CHECKS, problems, name=name)
    if problems:
        raise ConfigError(problems)
    return profile
