"""Reversible spellings of names that MLflow cannot hold. Standard library only.

A character outside the safe set becomes `_xHEX_` (its code point); a literal `_x` is written
`_x5F_x`, so that decoding is exact. Used for registered models (`org/model`), labels in metric
names, and MLflow parameter keys.
"""

from __future__ import annotations

import hashlib
import re
import string

_SAFE = frozenset(string.ascii_letters + string.digits + "_-. ")
_ESCAPE = re.compile(r"_x([0-9A-F]{1,6})_")


def encode(name: str) -> str:
    """`name` in letters, digits, space, `_`, `-`, `.`; `decode` gives the name back exactly.

    A name of dots alone (which MLflow takes for a path) and outer spaces are escaped as well.
    """
    out = []
    only_dots = set(name) <= {"."}
    for i, ch in enumerate(name):
        outer_space = ch == " " and i in (0, len(name) - 1)
        literal = ch == "_" and name[i + 1 : i + 2] == "x"
        plain = ch in _SAFE and not outer_space and not literal and not (only_dots and ch == ".")
        out.append(ch if plain else f"_x{ord(ch):X}_")
    return "".join(out)


def fit(encoded: str, limit: int) -> str:
    """`encoded`, or where it is longer than `limit` its beginning and a digest of the whole.

    What was cut cannot be decoded: whoever shortens keeps the whole name somewhere.
    """
    if len(encoded) <= limit:
        return encoded
    return f"{encoded[: limit - 11]}-{hashlib.sha256(encoded.encode()).hexdigest()[:10]}"


def decode(name: str) -> str:
    """The name that `encode` was given."""
    return _ESCAPE.sub(lambda m: chr(int(m.group(1), 16)), name)
