"""Recipes are read strictly: an error is one line with file, key, the value given and the value expected."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AliasChoices, Field

from nextturn.probe.command.errors import RecipeError, SettingsChanged
from nextturn.probe.command.files import refuse_changes
from nextturn.probe.command.recipe import (
    Count,
    Mark,
    RecipeSection,
    load_recipe,
    may_differ,
    recipe_dict,
    with_later_keys,
)
from nextturn.probe.command.sections import ProbeRecipe, load_probe_recipe


class Adapter(RecipeSection):
    r: Count = 32
    alpha: Annotated[int, Field(validation_alias=AliasChoices("alpha", "lora_alpha"))] = 16

    def check_keys(self) -> None:
        if self.alpha == self.r:
            raise RecipeError("alpha: the same as r")


class ModelPart(RecipeSection):
    name: str
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    lora: Adapter | None = None


class TrainPart(RecipeSection):
    learning_rate: float = 1e-4
    max_steps: int = 10
    packing: bool = False
    tags: tuple[str, ...] = ()


class Recipe(RecipeSection):
    model: ModelPart
    train: TrainPart = TrainPart()


GOOD = "model: {name: a/b}\n"


def load(tmp_path: Path, text: str, *overrides: str) -> Recipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(Recipe, path, overrides)


def error_of(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, text, *overrides)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message.replace(str(tmp_path / "recipe.yaml"), "FILE")


def test_values_and_defaults_are_read_and_written_back(tmp_path: Path) -> None:
    recipe = load(tmp_path, "model: {name: a/b, lora: {r: 8}}\ntrain: {tags: [x, y], learning_rate: 3.0e-5}\n")
    assert recipe.model == ModelPart(name="a/b", dtype="bfloat16", lora=Adapter(r=8))
    assert recipe.train == TrainPart(tags=("x", "y"), learning_rate=3e-5)
    assert load(tmp_path, yaml.safe_dump(recipe_dict(recipe))) == recipe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {nmae: a}\n", "FILE: model.nmae: unknown key; did you mean model.name?"),
        (GOOD + "learning_rate: 1\n", "FILE: learning_rate: unknown key; did you mean train.learning_rate?"),
        ("model: {name: a, lora: {rank: 8}}\n", "FILE: model.lora.rank: unknown key"),
        (GOOD + "zzz: 1\n", "FILE: zzz: unknown key; known here: model, train"),
        (GOOD + "train: {max_steps: ten}\n", "FILE: train.max_steps: given 'ten' (str), expected a whole number"),
        (GOOD + "train: {max_steps: 2.5}\n", "FILE: train.max_steps: given 2.5 (float), expected a whole number"),
        (GOOD + "train: {packing: 1}\n", "FILE: train.packing: given 1 (int), expected true or false"),
        (GOOD + "train: {learning_rate: fast}\n", "FILE: train.learning_rate: given 'fast' (str), expected a number"),
        (GOOD + "train: {tags: one}\n", "FILE: train.tags: given 'one' (str), expected a list"),
        (GOOD + "train: {tags: [one, 2]}\n", "FILE: train.tags.1: given 2 (int), expected text"),
        (GOOD + "train: [1]\n", "FILE: train: given [1] (list), expected a mapping of keys"),
        ("model: {name: a, dtype: int8}\n", "FILE: model.dtype: given 'int8' (str), expected one of 'bfloat16'"),
        ("model: {name: a, lora: {r: 0}}\n", "FILE: model.lora.r: given 0 (int), expected 1 or more"),
        ("model: {name: a, lora: {r: 16}}\n", "FILE: model.lora.alpha: the same as r"),
        ("model: {name: a, lora: {alpha: 1, lora_alpha: 1}}\n", "FILE: model.lora.lora_alpha: another name of"),
        ("model: {dtype: float32}\n", "FILE: model.name: missing"),
        ("# only a comment\n", "FILE: the file is empty"),
        ("- model\n- train\n", "FILE: a list at the top"),
        ("model: {name: a}\nmodel: {name: b}\n", "FILE:2: key 'model' is given twice"),
        (GOOD + "3: x\n", "FILE:2: key 3 is not text"),
        ("model: {name: a\n", "FILE:2: "),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "FILE:2: an alias (*name) is not read"),
        ("a: " + "[" * 5_000, "FILE: nested too deeply"),
        ("a: " + "[" * 150 + "]" * 150, "FILE: "),
        ("model: !!python/object:os.system {}\n", "FILE:1: "),
        ("model: {name: 2020-13-45}\n", "FILE: not YAML"),
        ('"a\\nb": 1\n', "FILE: a b: unknown key"),
    ],
)
def test_a_wrong_recipe_is_one_line_with_file_and_key(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in error_of(tmp_path, text)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("--trian.max_steps", "3"), "--trian.max_steps: unknown option"),
        (("--train.max_stps", "3"), "train.max_stps: unknown key; did you mean train.max_steps?"),
        (("--max_steps", "3"), "--max_steps: unknown option; did you mean train.max_steps?"),
        (("--train.max_steps",), "--train.max_steps: a value is missing"),
        (("train.max_steps", "3"), "train.max_steps: not an option"),
        (("--model.name.first", "x"), "command line: model.name: given {'first': 'x'} (dict), expected text"),
        (("--train.max_steps=",), "command line: train.max_steps: given None (NoneType), expected a whole number"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path: Path, overrides: tuple[str, ...], expected: str) -> None:
    assert expected in error_of(tmp_path, GOOD, *overrides)


@pytest.mark.parametrize(("text", "value"), [("2E3", 2e3), ("1.e-5", 1e-5), ("-.5e+1", -5.0)])
def test_a_number_with_an_exponent_is_a_number(tmp_path: Path, text: str, value: float) -> None:
    assert load(tmp_path, GOOD + f"train: {{learning_rate: {text}}}\n").train.learning_rate == value
    assert load(tmp_path, GOOD, "--train.learning_rate", text).train.learning_rate == value


@pytest.mark.parametrize("word", ["no", "Yes", "OFF"])
def test_a_word_that_old_yaml_reads_as_a_boolean_is_text(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, GOOD, "--train.tags", f"[{word}]").train.tags == (word,)
    assert "expected true or false" in error_of(tmp_path, GOOD + f"train: {{packing: {word}}}\n")


def test_options_replace_values_of_the_file(tmp_path: Path) -> None:
    options = ("--train.max_steps", "3", "--train.packing=true", "--model.name=a=b", "--train.tags=[x]")
    recipe = load(tmp_path, GOOD, *options)
    assert (recipe.model.name, recipe.train) == ("a=b", TrainPart(max_steps=3, packing=True, tags=("x",)))
    with_lora = "model: {name: a, lora: {r: 4, alpha: 2}}\n"
    assert load(tmp_path, with_lora, "--model.lora", "null").model.lora is None
    assert load(tmp_path, with_lora, "--model.lora.lora_alpha", "8").model.lora == Adapter(r=4, alpha=8)
    assert load(tmp_path, with_lora.replace("alpha", "lora_alpha")).model.lora == Adapter(r=4, alpha=2)
    for text in (GOOD, "model: {name: a/b, lora: null}\n"):
        assert load(tmp_path, text, "--model.lora.r", "4").model.lora == Adapter(r=4)
    for text in ("[half", "2020-13-45", "a: b: c"):
        assert load(tmp_path, GOOD, "--model.name", text).model.name == text, "not YAML, so text"


def test_an_option_may_name_a_section_in_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "probe.yaml"
    path.write_text("probe: {sets: {gsm8k: {n: 200}}}\n")
    probe = load_recipe(ProbeRecipe, path, ["--probe.sets.gsm8k.n", "5", "--probe.sets.own.path", "own.jsonl"]).probe
    assert (probe.sets["gsm8k"].n, probe.sets["own"].path) == (5, "own.jsonl")
    with pytest.raises(RecipeError, match="probe.sets.gsm8k.pth:"):
        load_recipe(ProbeRecipe, path, ["--probe.sets.gsm8k.pth", "5"])


def test_the_probe_reads_its_section_of_a_training_recipe(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text("model: {name: a/b}\ntrain: {max_steps: 3}\nprobe: {seed: 4}\ntracking: {to: wandb, name: sft}\n")
    recipe = load_probe_recipe(path, ["--probe.sets.own.path", "own.jsonl"])
    assert recipe.probe.seed == 4 and recipe.probe.sets["own"].path == "own.jsonl"
    assert recipe.tracking.to == "none", "the training run's name is not the probe's"
    path.write_text("model: {name: a/b}\nprobe: {seed: 4}\n")
    with pytest.raises(RecipeError, match="model:"):
        load_probe_recipe(path)


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_a_recipe_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match=str(tmp_path / name)):
        load_recipe(Recipe, tmp_path / name)


@pytest.mark.parametrize(("keys", "judge"), [({}, "llm"), ({"judge": "rules"}, "rules"), (None, "rules")])
def test_a_judge_server_is_used_unless_the_recipe_names_the_rules(
    keys: dict[str, str] | None, judge: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = {} if keys is None else {"judge_server": {"urls": ["http://localhost:1/v1"]}, **keys}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"probe": {"sets": {"q": {}}, **server}}))
    assert load_probe_recipe(tmp_path / "recipe.yaml").probe.judge == judge
    assert ("probe.judge_server" in capsys.readouterr().out) == (judge == "llm")


KEYS = st.text(max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.dates() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
UNKNOWN = KEYS.filter(lambda key: key not in {"model", "train", "name", "dtype", "lora"})
YAML = st.dictionaries(UNKNOWN, VALUES, min_size=1, max_size=4).flatmap(
    lambda mapping: st.sampled_from([mapping, {"model": {"name": "a"}, **mapping}, {"model": {"name": "a", **mapping}}])
)


@settings(max_examples=settings().max_examples // 4)
@given(YAML.map(yaml.safe_dump).map(str.encode) | st.binary(max_size=40))
def test_unknown_keys_and_random_bytes_are_errors_of_one_line(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_bytes(content)
        with pytest.raises(RecipeError) as caught:
            load_recipe(Recipe, path)
        assert str(caught.value).startswith(str(path)) and len(str(caught.value).splitlines()) == 1


class Marked(RecipeSection):
    rows: int = 1
    row: Annotated[Count | None, Mark.FREE] = 2
    inner: Annotated[TrainPart, Mark.COMPARED, Mark.FREE] = TrainPart()


class Outer(RecipeSection):
    kept: Marked = Marked()
    named: dict[str, Marked] = {}
    engine: Annotated[str, Mark.IN_BUILDS] = "hf"


def test_a_key_without_a_mark_identifies_a_run(tmp_path: Path) -> None:
    free = may_differ(Outer, Mark.FREE)
    assert set(free) == {"kept.row", "kept.inner", "named.NAME.row", "named.NAME.inner"}
    assert recipe_dict(Outer(), Mark.FREE, Mark.IN_BUILDS) == {"kept": {"rows": 1}, "named": {}}
    before = recipe_dict(Outer())
    changed = Marked(row=None, inner=TrainPart(packing=True))
    refuse_changes(tmp_path, "begun", before, recipe_dict(Outer(kept=changed)), free)
    for other in (Outer(kept=Marked(rows=2)), Outer(engine="vllm"), Outer(named={"a": Marked()})):
        with pytest.raises(SettingsChanged):
            refuse_changes(tmp_path, "begun", before, recipe_dict(other), free)
    with pytest.raises(SettingsChanged, match="of_later"):
        refuse_changes(tmp_path, "begun", before | {"of_later": 1}, before, free)


def test_a_run_that_began_before_a_key_existed_goes_on_with_its_default() -> None:
    class Part(RecipeSection):
        old: int = 1
        new: int = 2

    class Whole(RecipeSection):
        part: Part = Part()
        later: float = 0.0

    begun = {"part": {"old": 3}}
    assert with_later_keys(begun, Whole(part=Part(old=4))) == {"part": {"old": 3, "new": 2}, "later": 0.0}
    assert with_later_keys(begun, Whole(part=Part(new=9), later=1.0)) == begun, (
        "another value than the default is another run"
    )
