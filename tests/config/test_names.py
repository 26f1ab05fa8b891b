"""Names that MLflow cannot hold are spelled so that it can, and come back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name, _validate_model_name

from greenroom.names import decode, encode

NAMES = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("_x5F2/.: ")), min_size=1)


@given(NAMES)
def test_decode_gives_the_name_back(name: str) -> None:
    assert decode(encode(name)) == name


@given(NAMES)
def test_mlflow_takes_the_spelling_for_models_and_metrics(name: str) -> None:
    _validate_model_name(encode(name))
    _validate_metric_name(f"f1/{encode(name)}")


@given(NAMES, NAMES)
def test_two_names_never_share_a_spelling(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


@pytest.mark.parametrize(
    "name, spelled",
    [
        ("question-types", "question-types"),
        ("org/model", "org_x2F_model"),
        ("größe 😀", "gr_xF6__xDF_e _x1F600_"),
        ("_x2F_", "_x5F_x2F_"),
        ("..", "_x2E__x2E_"),
        (" a ", "_x20_a_x20_"),
    ],
)
def test_known_spellings(name: str, spelled: str) -> None:
    assert encode(name) == spelled
