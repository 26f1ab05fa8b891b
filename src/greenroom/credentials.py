"""Where a cloud's own library would take credentials from. Standard library only.

Called by `doctor`. Looks at names alone: no value is read, and nothing is asked over the network,
so a machine's own role or account is not found.
"""

from __future__ import annotations

import os
from pathlib import Path

_AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def aws() -> str:
    """The variable or file that boto3 would use; "" when there is none."""
    named = [name for name in _AWS_VARIABLES if os.environ.get(name)]
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or _home(".aws", "credentials"))
    return next(iter(named), "") or (str(file) if file.is_file() else "")


def google() -> str:
    """The file that google-auth would use; "" when there is none."""
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or _home(".config", "gcloud"))
    file = Path(
        os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        or folder / "application_default_credentials.json"
    )
    return str(file) if file.is_file() else ""


def _home(*parts: str) -> Path:
    return Path.home().joinpath(*parts)
