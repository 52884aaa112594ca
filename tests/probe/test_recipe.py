"""Recipes are read strictly: what is wrong gives one line with file, key, what was given and what is wanted."""

from __future__ import annotations

import tempfile
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nextturn.probe.errors import RecipeError
from nextturn.probe.recipe import load_recipe, recipe_dict, section
from nextturn.probe.settings import ProbeRecipe, load_probe_recipe


@section
class Adapter:
    r: int = 32
    dropout: float = 0.0


@section
class ModelPart:
    name: str
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    lora: Adapter | None = None


@section
class TrainPart:
    learning_rate: float = 1e-4
    max_steps: int = 10
    packing: bool = False
    tags: tuple[str, ...] = ()


@section
class Recipe:
    model: ModelPart
    train: TrainPart = field(default_factory=TrainPart)


GOOD = "model: {name: a/b}\n"


def load(tmp_path: Path, text: str, *overrides: str) -> Recipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(Recipe, path, overrides)


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, text, *overrides)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message.replace(str(tmp_path / "recipe.yaml"), "FILE")


def test_what_is_left_out_takes_its_default_and_what_is_given_is_kept(tmp_path: Path) -> None:
    recipe = load(tmp_path, "model: {name: a/b, lora: {r: 8}}\ntrain:\n  tags: [x, y]\n")
    assert recipe.model == ModelPart(name="a/b", dtype="bfloat16", lora=Adapter(r=8, dropout=0.0))
    assert recipe.train == TrainPart(tags=("x", "y"))


def test_a_recipe_as_plain_data_reads_back_the_same(tmp_path: Path) -> None:
    recipe = load(tmp_path, "model: {name: a/b, lora: {r: 8}}\ntrain: {tags: [x], learning_rate: 3.0e-5}\n")
    assert load(tmp_path, yaml.safe_dump(recipe_dict(recipe))) == recipe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {nmae: a}\n", "FILE: model.nmae: unknown key; did you mean model.name?"),
        (GOOD + "trian: {}\n", "FILE: trian: unknown key; did you mean train?"),
        (GOOD + "train: {learning_rat: 1}\n", "did you mean train.learning_rate?"),
        (GOOD + "learning_rate: 1\n", "FILE: learning_rate: unknown key; did you mean train.learning_rate?"),
        ("model: {name: a, lora: {rank: 8}}\n", "FILE: model.lora.rank: unknown key"),
        (GOOD + "zzz: 1\n", "FILE: zzz: unknown key; known here: model, train"),
        (GOOD + "train: {max_steps: ten}\n", "FILE: train.max_steps: given 'ten' (str), wanted a whole number"),
        (GOOD + "train: {max_steps: 2.5}\n", "FILE: train.max_steps: given 2.5 (float), wanted a whole number"),
        (GOOD + "train: {max_steps: null}\n", "FILE: train.max_steps: given None (NoneType), wanted a whole number"),
        (GOOD + "train: {packing: 1}\n", "FILE: train.packing: given 1 (int), wanted true or false"),
        (GOOD + "train: {packing: 'yes'}\n", "FILE: train.packing: given 'yes' (str), wanted true or false"),
        (GOOD + "train: {learning_rate: fast}\n", "FILE: train.learning_rate: given 'fast' (str), wanted a number"),
        (GOOD + "train: {tags: one}\n", "FILE: train.tags: given 'one' (str), wanted a list"),
        (GOOD + "train: {tags: [one, 2]}\n", "FILE: train.tags.1: given 2 (int), wanted text"),
        (GOOD + "train: [1]\n", "FILE: train: given [1] (list), wanted a mapping of keys"),
        ("model: {name: 7}\n", "FILE: model.name: given 7 (int), wanted text"),
        ("model: {name: a, dtype: int8}\n", "FILE: model.dtype: given 'int8' (str), wanted one of 'bfloat16'"),
        ("model: {name: a, lora: 8}\n", "FILE: model.lora: given 8 (int), wanted a mapping of keys"),
        ("model: {dtype: float32}\n", "FILE: model.name: missing, and it has no default"),
        ("train: {}\n", "FILE: model: missing, and it has no default"),
        ("", "FILE: the file is empty, wanted sections such as `model:`"),
        ("# only a remark\n", "FILE: the file is empty"),
        ("- model\n- train\n", "FILE: a list at the top, wanted sections such as `model:`"),
        ("just text\n", "FILE: a str at the top"),
        ("model: {name: a}\nmodel: {name: b}\n", "FILE:2: key 'model' is given twice"),
        ("model:\n  name: a\n  name: b\n", "FILE:3: key 'name' is given twice"),
        (GOOD + "3: x\n", "FILE:2: key 3 is not text"),
        ("model: {name: a\n", "FILE:2: "),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "FILE:2: an alias (*name) is not read"),
        ("a: " + "[" * 100_000, "FILE: nested too deeply"),
        ("a: " + "[" * 150 + "]" * 150, "FILE: "),
        ("model: !!python/object:os.system {}\n", "FILE:1: could not determine a constructor"),
        ("model: {name: 2020-13-45}\n", "FILE: a value that YAML cannot read (month must be in 1..12)"),
        ("a: &a [*a]\n", "FILE:1: an alias (*name) is not read"),
        ('"a\\nb": 1\n', "FILE: a b: unknown key"),
    ],
)
def test_a_wrong_recipe_gives_one_line_that_names_file_and_key(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-5", 1e-5), ("2E3", 2e3), ("1.e-5", 1e-5), ("-.5e+1", -5.0), ("1.0e-4", 1e-4), ("3", 3.0)],
)
def test_a_number_with_an_exponent_is_a_number(tmp_path: Path, written: str, value: float) -> None:
    assert load(tmp_path, GOOD + f"train: {{learning_rate: {written}}}\n").train.learning_rate == value
    assert load(tmp_path, GOOD, "--train.learning_rate", written).train.learning_rate == value


@pytest.mark.parametrize("word", ["no", "Yes", "on", "OFF"])
def test_a_word_that_old_yaml_takes_for_a_truth_value_is_text(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, GOOD, "--train.tags", f"[{word}]").train.tags == (word,)
    assert "wanted true or false" in refusal(tmp_path, GOOD + f"train: {{packing: {word}}}\n")


def test_null_leaves_an_optional_section_out(tmp_path: Path) -> None:
    assert load(tmp_path, "model: {name: a, lora: null}\n").model.lora is None
    assert load(tmp_path, "model: {name: a, lora: {r: 4}}\n", "--model.lora", "null").model.lora is None


def test_overrides_take_a_value_beside_them_or_after_an_equals_sign(tmp_path: Path) -> None:
    recipe = load(
        tmp_path, GOOD, "--train.max_steps", "3", "--train.packing=true", "--model.name=a=b", "--train.tags=[x]"
    )
    assert (recipe.train.max_steps, recipe.train.packing) == (3, True)
    assert (recipe.model.name, recipe.train.tags) == ("a=b", ("x",))


@pytest.mark.parametrize("text", [GOOD, "model: {name: a/b, lora: null}\n"])
def test_an_override_may_reach_into_a_section_that_is_not_there(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text, "--model.lora.r", "4").model.lora == Adapter(r=4)


def test_an_override_may_reach_into_a_mapping_of_sections(tmp_path: Path) -> None:
    path = tmp_path / "probe.yaml"
    path.write_text("probe: {sets: {gsm8k: {n: 200}}}\n")
    probe = load_recipe(ProbeRecipe, path, ["--probe.sets.gsm8k.n", "5", "--probe.sets.own.path", "own.jsonl"]).probe
    assert probe.sets["gsm8k"].n == 5
    assert probe.sets["own"].path == "own.jsonl"
    with pytest.raises(RecipeError, match="probe.sets.gsm8k.pth: unknown key"):
        load_recipe(ProbeRecipe, path, ["--probe.sets.gsm8k.pth", "5"])


def test_the_probe_takes_its_section_from_a_training_recipe(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text("model: {name: a/b}\ntrain: {max_steps: 3}\nprobe: {seed: 4}\ntracking: {to: wandb, name: sft}\n")
    recipe = load_probe_recipe(path, ["--probe.sets.own.path", "own.jsonl"])
    assert recipe.probe.seed == 4 and recipe.probe.sets["own"].path == "own.jsonl"
    assert recipe.tracking.to == "none", "the name there is that of the training run"
    path.write_text("model: {name: a/b}\nprobe: {seed: 4}\n")
    with pytest.raises(RecipeError, match="model: unknown key"):
        load_probe_recipe(path)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("--trian.max_steps", "3"), "--trian.max_steps: unknown option"),
        (("--train.max_stps", "3"), "train.max_stps: unknown key; did you mean train.max_steps?"),
        (("--max_steps", "3"), "--max_steps: unknown option; did you mean train.max_steps?"),
        (("--train.max_steps",), "--train.max_steps: a value is missing"),
        (("train.max_steps", "3"), "train.max_steps: not an option; an override looks like --section.key value"),
        (("--train.max_steps", "many"), "FILE: train.max_steps: given 'many' (str), wanted a whole number"),
        (("--train.max_steps=",), "FILE: train.max_steps: given None (NoneType), wanted a whole number"),
        (("--model.name.first", "x"), "FILE: model.name: given {'first': 'x'} (dict), wanted text"),
    ],
)
def test_a_wrong_override_gives_one_line(tmp_path: Path, overrides: tuple[str, ...], expected: str) -> None:
    assert expected in refusal(tmp_path, GOOD, *overrides)


def test_an_override_that_is_no_yaml_is_taken_as_text(tmp_path: Path) -> None:
    for text in ("[half", "2020-13-45", "a: b: c"):
        assert load(tmp_path, GOOD, "--model.name", text).model.name == text


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_a_recipe_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match=str(tmp_path / name)):
        load_recipe(Recipe, tmp_path / name)


KEYS = st.text(max_size=12)


@pytest.mark.parametrize(("given", "judge"), [({}, "llm"), ({"judge": "rules"}, "rules"), (None, "rules")])
def test_a_judge_server_is_asked_unless_the_recipe_names_the_rules(
    given: dict[str, str] | None, judge: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = {} if given is None else {"judge_server": {"urls": ["http://localhost:1/v1"]}, **given}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"probe": {"sets": {"q": {}}, **server}}))
    assert load_probe_recipe(tmp_path / "recipe.yaml").probe.judge == judge
    assert ("probe.judge_server" in capsys.readouterr().out) == (judge == "llm")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.dates() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
KNOWN = {"model", "train", "name", "dtype", "lora"}


@given(st.dictionaries(KEYS.filter(lambda key: key not in KNOWN), VALUES, min_size=1, max_size=4))
def test_any_mapping_of_unknown_keys_is_refused_in_one_line(mapping: dict[str, Any]) -> None:
    for content in (mapping, {"model": {"name": "a"}, **mapping}, {"model": {"name": "a", **mapping}}):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "recipe.yaml"
            path.write_text(yaml.safe_dump(content), encoding="utf-8")
            with pytest.raises(RecipeError) as caught:
                load_recipe(Recipe, path)
            assert str(caught.value).startswith(str(path))
            assert len(str(caught.value).splitlines()) == 1


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_are_read_or_refused_and_nothing_else(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_bytes(content)
        with pytest.raises(RecipeError):  # no 40 random bytes name `model:` with a `name`
            load_recipe(Recipe, path)
