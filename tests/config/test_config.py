"""Files and -P overrides become checked values, or one error with every problem in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom import config, specs
from greenroom.config import tables
from greenroom.errors import ConfigError
from greenroom.specs import Condition, Experiment

ROOT = Path(__file__).parents[2]


def experiment(tmp_path: Path, text: str, **overrides: str) -> Experiment:
    file = tmp_path / "experiment.toml"
    file.write_text(text, encoding="utf-8")
    return config.load_experiment(file, overrides)


def problems(tmp_path: Path, text: str, **overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        experiment(tmp_path, text, **overrides)
    return caught.value.problems


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert experiment(tmp_path, "") == Experiment()


def test_the_default_experiment_writes_out_every_key() -> None:
    table = tables.read_toml(ROOT / "experiments/question-types.toml")
    for section, cls in (("data", specs.DataSpec), ("training", specs.TrainingSpec)):
        assert set(table[section]) == set(cls.__annotations__)
    assert set(table["tuning"]) == set(specs.TuningSpec.__annotations__)
    loaded = config.load_experiment(ROOT / "experiments/question-types.toml")
    assert loaded.evaluation.gate == (Condition("accuracy", ">=", 0.92),)


def test_overrides_win_and_have_the_type_of_their_key(tmp_path: Path) -> None:
    loaded = experiment(
        tmp_path,
        "[training]\nepochs = 5\n",
        **{
            "training.epochs": "2",
            "training.learning_rate": "5e-5",
            "training.use_validation": "True",
            "data.text": "17",
            "models": "a, b",
            "tuning.space.batch_size": "16,32",
            "evaluation.gate.f1_macro": ">= 0.85",
        },
    )
    training = loaded.training
    assert (training.epochs, training.learning_rate, training.use_validation) == (2, 5e-5, True)
    assert loaded.data.text == "17"
    assert loaded.models == ("a", "b")
    assert loaded.tuning.space == (specs.Parameter("batch_size", "choice", values=(16, 32)),)
    assert loaded.evaluation.gate == (Condition("f1_macro", ">=", 0.85),)


def test_all_problems_come_in_one_message(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
        task = "classificaton"
        nmae = "x"
        [data]
        sed = 1
        max_length = 2
        [training]
        epochs = 2.5
        learning_rate = nan
        [tuning.space]
        learning_rat = "1->2"
        epochs = "1.5->3"
        batch_size = "0,16"
        [evaluation.gate]
        accuracy = "better"
        """,
    )
    text = "\n".join(found)
    assert len(found) == 10
    assert "did you mean 'classification'" in text
    assert "did you mean 'name'" in text
    assert "data.sed: unknown key; did you mean 'seed'" in text
    assert "data.max_length: must be at least 3, not 2" in text
    assert "training.epochs: 2.5 is not a whole number" in text
    assert "training.learning_rate: nan is not a finite number" in text
    assert "did you mean 'learning_rate'" in text
    assert "tuning.space.epochs: epochs is a whole number" in text
    assert "tuning.space.batch_size: must be at least 1, not 0" in text
    assert "evaluation.gate.accuracy" in text


@pytest.mark.parametrize(
    "text, part",
    [
        ("[data]\nvalidation_fraction = 0.6\ntest_fraction = 0.4\n", "leaves nothing to train on"),
        ("[training]\nbatch_size = 8\nmicro_batch_size = 16\n", "is more than"),
        ("[training]\nepochs = true\n", "not a whole number"),
        ("[training]\nlearning_rate = '1e-4'\n", "not a number"),
        ("[training]\nuse_validation = 1\n", "not true or false"),
        ("data = 3\n", "must be a table"),
        ("models = []\n", "at least one model"),
        ("models = ['a', 'a']\n", "twice"),
        ("models = 3\n", "not a list"),
        ("name = ''\n", "must not be empty"),
        ("name = '" + "x" * 101 + "'\n", "100 are allowed"),
        ("[tuning.space]\nprecision = '0->1'\n", "needs a numeric key"),
        ("[tuning.space]\nuse_validation = 'true,false'\n", "cannot be searched"),
        ("[tuning.space]\nobjective = 'loss,accuracy'\n", "cannot be searched"),
        ("[data]\nsplits = 'column:'\n", "names no column"),
        ("[tuning.space]\nprecision = 'fp32,fp64'\n", "unknown value 'fp64'"),
        ("[tuning.space]\nlearning_rate = 3\n", "not a text"),
    ],
)
def test_refuses(tmp_path: Path, text: str, part: str) -> None:
    assert part in "\n".join(problems(tmp_path, text))


def test_a_missing_file_and_broken_toml_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such file"):
        config.load_experiment(tmp_path / "nowhere.toml")
    assert "experiment.toml" in problems(tmp_path, "a = = 1")[0]


def test_split_arguments_takes_both_forms_and_leaves_out_empty_values() -> None:
    options, overrides = config.split_arguments(
        ["--experiment", "", "--hardware=cpu", "--training.epochs", "-1", "--name=a=b"]
    )
    assert options == {"hardware": "cpu"}
    assert overrides == {"training.epochs": "-1", "name": "a=b"}


@pytest.mark.parametrize(
    "argv, part",
    [
        (["--training.epoch", "2"], "did you mean 'training.epochs'"),
        (["--hardwar", "cpu"], "did you mean 'hardware'"),
        (["training.epochs=2"], "unexpected argument"),
        (["--training.epochs"], "a value is missing"),
        (["--hardware", "cup"], "did you mean 'cpu'"),
        (["--hardware.threads", "-1"], "must be at least 0"),
    ],
)
def test_bad_arguments_are_refused_with_the_nearest_name(argv: list[str], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        config.parse_arguments("train", argv)


def test_experiment_and_hardware_problems_come_together() -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse_arguments("train", ["--hardware", "cup", "--training.epochs", "x"])
    assert len(caught.value.problems) == 2


def test_the_placeholders_of_mlproject_mean_nothing_given() -> None:
    with pytest.raises(ConfigError, match="run: is for the step evaluate, not train"):
        config.parse_arguments("train", ["--run", "x"])
    request = config.parse_arguments("train", ["--tuned", "none", "--run", "latest"])
    assert (request.tuned, request.run, request.explicit) == ("", "", ())


@given(st.dictionaries(st.sampled_from(config.valid_keys()), st.text(min_size=1), max_size=6))
def test_any_override_gives_values_or_a_config_error(overrides: dict[str, str]) -> None:
    argv = [f"--{key}={value}" for key, value in overrides.items()]
    try:
        request = config.parse_arguments("train", argv)
    except ConfigError:
        return
    assert specs.as_json(request.experiment)


@pytest.mark.parametrize("bound, value, holds", [(0.9, 0.9, True), (0.9, 0.89, False)])
def test_conditions(bound: float, value: float, holds: bool) -> None:
    assert Condition("f1", ">=", bound).holds(value) is holds
    assert Condition("f1", "<", bound).holds(value) is not holds


@pytest.mark.parametrize("operator", [">=", "<=", ">", "<"])
def test_nan_meets_no_condition(operator: str) -> None:
    assert not Condition("f1", operator, 0.5).holds(float("nan"))


DEPLOYMENT = '[[deployment]]\nmodel = "m"\nstage = "Production"\nendpoint = "e"\n'


def deployments(tmp_path: Path, text: str) -> tuple[specs.Deployment, ...]:
    file = tmp_path / "deployments.toml"
    file.write_text(text, encoding="utf-8")
    return config.load_deployments(file)


def test_a_deployment_is_named_after_its_endpoint(tmp_path: Path) -> None:
    (found,) = deployments(tmp_path, DEPLOYMENT + '[deployment.gate]\naccuracy = ">= 0.8"\n')
    assert (found.name, found.endpoint, found.target) == ("e", "e", "local")
    assert found.gate == (Condition("accuracy", ">=", 0.8),)
    assert found.selector == "stage Production"


@pytest.mark.parametrize(
    "text, part",
    [
        (DEPLOYMENT + 'alias = "champion"\n', "either stage or alias"),
        ('[[deployment]]\nmodel = "m"\nendpoint = "e"\n', "either stage or alias"),
        (DEPLOYMENT + DEPLOYMENT, "two deployments have the name 'e'"),
        (
            DEPLOYMENT + "port = 80\n" + DEPLOYMENT.replace('"e"', '"f"') + "port = 80\n",
            "2 deployments have the port 80",
        ),
        (DEPLOYMENT + "port = [80]\n", "port"),
        (DEPLOYMENT.replace("Production", "Prodction"), "did you mean 'Production'"),
        (DEPLOYMENT.replace('stage = "Production"', 'alias = "Champion"'), "lower-case"),
        (DEPLOYMENT.replace('"e"', '"a_b"'), "single hyphens"),
        (DEPLOYMENT.replace('model = "m"\n', ""), "model: is missing"),
        (DEPLOYMENT + 'target = "sagemake"\n', "unknown value 'sagemake'"),
        (DEPLOYMENT + "port = 70000\n", "must be in"),
        ("[deployment]\nmodel = 'm'\n", r"\[\[deployment\]\]"),
        ("[[deploymnt]]\n", "unknown key"),
    ],
)
def test_a_bad_deployment_is_refused(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        deployments(tmp_path, text)


def test_every_place_and_target_that_config_allows_exists() -> None:
    from greenroom.config.deployments import TARGETS
    from greenroom.config.hardware import PLACES
    from greenroom.deploy import base
    from greenroom.launch import LAUNCHERS

    assert set(PLACES) == set(LAUNCHERS)
    assert set(TARGETS) == set(base.TARGETS)
