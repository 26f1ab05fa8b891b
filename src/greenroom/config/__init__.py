"""Experiment, hardware and deployment files and -P overrides -> the values of `specs`.

The only package that turns a user's strings into specs. Every function either returns checked
values or raises one `ConfigError` that lists all problems, each with the valid choices.
"""

from greenroom.config.arguments import make_request, parse_arguments, split_arguments, valid_keys
from greenroom.config.deployments import deployments_path, load_deployments
from greenroom.config.experiment import DEFAULT_EXPERIMENT, load_experiment
from greenroom.config.hardware import load_profile

__all__ = [
    "DEFAULT_EXPERIMENT",
    "deployments_path",
    "load_deployments",
    "load_experiment",
    "load_profile",
    "make_request",
    "parse_arguments",
    "split_arguments",
    "valid_keys",
]
