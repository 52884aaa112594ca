"""trl's vLLM in the training process, by trl's own code over a stand-in for `vllm.LLM`: how it is started, which weights it
is given, when it sleeps, and that the rollout and the probe are answered by it.

The stand-in keeps to what trl 1.16 and this project rely on in vLLM 0.31. It holds a model of the names and shapes of the
folder that it was started on, forgets its weights when it is put to sleep at level 2, and generates by the hf engine.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nextturn.probe.command.errors import BadInput, RecipeError
from nextturn.probe.command.files import read_json
from nextturn.probe.engines.base import Request, collect
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.engines.vllm import RUNNING
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from nextturn.train.colocated import ColocatedVllm, colocated_settings, rows_at_once
from nextturn.train.sections import RolloutSection, load_grpo_recipe
from support.grpo_parts import teach_to_talk, write_recipe

VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 512}


class HeldModel:
    """vLLM's `LLM` as trl uses it, its engine, its worker and the model in that all at once."""

    started: list[HeldModel] = []

    def __init__(self, **settings: Any) -> None:
        HeldModel.started.append(self)
        self.settings = settings
        folder = resolve(settings["model"])
        self.inner: Any = load_model(folder, "auto", "cpu")
        self.expected = {name for name, _ in self.inner.named_parameters()}
        self.engine = HfEngine(self.inner, load_tokenizer(folder))
        self.calls: list[Any] = []
        self.given: set[str] = set()
        self.weights = self.cache = True  # in memory
        self.llm_engine = self.model_executor = self.driver_worker = self.model_runner = self.model = self
        self.model_config = SimpleNamespace(max_model_len=settings["max_model_len"], dtype=self.inner.dtype)

    def sleep(self, level: int) -> None:
        assert self.settings["enable_sleep_mode"] and level == 2 and self.weights and self.cache
        self.calls.append("sleep")
        self.weights = self.cache = False
        self.given.clear()
        for parameter in self.inner.parameters():
            parameter.data.fill_(float("nan"))

    def wake_up(self, tags: list[str]) -> None:
        (tag,) = tags
        self.calls.append(f"wake {tag}")
        self.weights, self.cache = self.weights or tag == "weights", self.cache or tag == "kv_cache"

    def load_weights(self, weights: list[tuple[str, Any]]) -> None:
        assert self.weights, "they would be written into memory that is not there"
        if self.calls[-1:] != ["load"]:
            self.calls.append("load")
        for name, tensor in weights:
            own = self.inner.get_parameter(name)
            assert own.shape == tensor.shape, name
            own.data.copy_(tensor)
            self.given.add(name)

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset")

    def generate(self, prompts: list[Any], sampling_params: Any, use_tqdm: bool) -> list[SimpleNamespace]:
        assert self.weights and self.cache and self.given == self.expected and not use_tqdm
        each = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        self.calls.append("probe" if isinstance(sampling_params, list) else "rollout")
        requests = [
            Request(
                tuple(prompt["prompt_token_ids"]), options["max_tokens"], tuple(options.get("stop_token_ids") or ()),
                options["temperature"], options.get("seed") or len(self.calls) * 1000 + place,
            )
            for place, (prompt, options) in enumerate(zip(prompts, each, strict=True))
        ]  # fmt: skip
        outputs = []
        for request, made in zip(requests, collect(self.engine, requests), strict=True):
            log_probs = [{token: SimpleNamespace(logprob=-1.0, rank=1)} for token in made.ids]
            output = SimpleNamespace(token_ids=list(made.ids), finish_reason=made.finish, logprobs=log_probs)
            outputs.append(SimpleNamespace(prompt_token_ids=list(request.prompt_ids), outputs=[output]))
        return outputs


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[HeldModel]]:
    """Every stand-in that was started; the package `vllm` as far as trl and the probe import it."""
    from trl.generation import vllm_generation

    package = {name: ModuleType(name) for name in ("vllm", "vllm.exceptions", "vllm.platforms")}
    error = type("VLLMError", (Exception,), {})
    vars(package["vllm.exceptions"]).update(VLLMError=error, VLLMClientError=type("VLLMClientError", (error,), {}))
    vars(package["vllm.platforms"])["current_platform"] = SimpleNamespace(is_cpu=lambda: False)
    vars(package["vllm"]).update(SamplingParams=dict, TokensPrompt=dict, LLM=HeldModel, __version__="0.31.0")
    for name, module in package.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "LLM", HeldModel, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", dict, raising=False)
    monkeypatch.setattr(vllm_generation, "empty_cache", lambda: None)  # of a GPU
    monkeypatch.setattr("nextturn.train.setup.check_devices", lambda *_: None)  # which wants a GPU
    monkeypatch.setattr(HeldModel, "started", [])
    environment = dict(os.environ)  # trl sets RANK and its like for vLLM
    yield HeldModel.started
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(scope="module")
def talkers(tiny_chatml: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny Llama that ends its turns, by its type."""
    folder = teach_to_talk(tiny_chatml, tmp_path_factory.mktemp("models") / "float32")
    half = Path(shutil.copytree(folder, folder.parent / "bfloat16"))
    load_model(resolve(str(folder)), "bfloat16", "cpu").save_pretrained(half)
    return {"float32": folder, "bfloat16": half}


@pytest.mark.parametrize(("kind", "dtype"), [("lora", "bfloat16"), ("all weights", "float32")])
def test_a_run_generates_and_is_probed_with_the_live_weights_in_a_vllm_that_sleeps_meanwhile(
    kind: str, dtype: str, talkers: dict[str, Path], tmp_path: Path, held: list[HeldModel]
) -> None:
    import torch
    from transformers import TrainerCallback

    from nextturn.probe.plan import load_sets
    from nextturn.probe.run import measure_folder
    from nextturn.train import grpo

    models: list[Any] = []

    class Keeps(TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            models.append(model)

    lora = {"lora": {"r": 4, "alpha": 32}} if kind == "lora" else {}
    recipe = write_recipe(
        tmp_path, talkers[dtype], model={"dtype": dtype, **lora}, rollout={"window": 1, "samples": 2},
        probe={"engine": "vllm"}, train={**VLLM, "vllm_enable_sleep_mode": True, "max_steps": 1, "learning_rate": 1e-2},
    )  # fmt: skip
    grpo.train(load_grpo_recipe(recipe), callbacks=[Keeps()])
    (llm,) = held
    (model,) = models

    # Every generation finds the weights of its time, and vLLM sleeps in between.
    sent = ["wake weights", "load", "reset", "wake kv_cache"]
    text = " ".join(llm.calls)
    assert text.startswith("sleep " + " ".join([*sent, "probe", "probe", "sleep"])), "the base, before the first step"
    assert text.endswith(" ".join([*sent, "probe", "probe", "sleep"])), "the last checkpoint"
    assert text.count("probe") == 4
    assert text.count(" ".join([*sent, "rollout", "sleep"])) == text.count("rollout") == 2, "one exchange ahead"

    # They come under the names of the plain model, merged where there is an adapter, which leaves the base as it was.
    plain = load_model(resolve(str(talkers[dtype])), "auto", "cpu")
    assert llm.expected == {name for name, _ in plain.named_parameters()}
    if kind == "lora":
        base = {name.replace(".base_layer", ""): p for name, p in model.get_base_model().named_parameters()}
        for name, parameter in plain.named_parameters():
            assert torch.equal(base[name], parameter), name

    # What it measured is what the checkpoint says to transformers, grounding included; where nothing is rounded, to the
    # last figure.
    probe = load_grpo_recipe(recipe, ["--probe.engine", "hf"]).probe
    assert probe is not None
    found = {label: read_json(tmp_path / "run/probe" / label / "results.json") for label in ("base", "step-1")}
    assert found["base"]["model"]["weights_sha256"] != found["step-1"]["model"]["weights_sha256"]
    assert {(one["settings"]["engine"], one["settings"]["dtype"]) for one in found.values()} == {("vllm", dtype)}
    if dtype == "float32":
        checkpoint, measured = resolve(str(tmp_path / "run/checkpoint-1")), ("accuracy", "followup")
        again = measure_folder(checkpoint, probe, load_sets(probe), tmp_path / "by-hf", label="step-1")
        assert again["settings"]["engine"] == "hf"
        assert again["model"]["weights_sha256"] == found["step-1"]["model"]["weights_sha256"]
        assert {key: again[key] for key in measured} == {key: found["step-1"][key] for key in measured}


@pytest.mark.parametrize(
    ("mode", "window", "samples", "probed", "rows"),
    [
        ("reply", 2, 3, False, 96),  # recipes/qwen2b_grpo.yaml without its probe, on each of 8 GPUs
        ("reply", 0, 3, False, 32),
        ("conversation", 2, 3, False, 32),
        ("reply", 2, 100, False, RUNNING),
        ("reply", 2, 3, True, RUNNING),
    ],
)
def test_vllm_has_room_for_what_is_asked_at_once(mode: Any, window: int, samples: int, probed: bool, rows: int) -> None:
    args = SimpleNamespace(per_device_train_batch_size=4, steps_per_generation=8, vllm_tensor_parallel_size=1)
    assert rows_at_once(args, RolloutSection(mode=mode, window=window, samples=samples), probed) == rows


@pytest.mark.parametrize(("kind", "cached"), [("tiny_chatml", True), ("tiny_model", False)])
def test_trl_starts_vllm_with_that_room_and_without_prefix_caching_for_linear_attention(
    kind: str, cached: bool, request: pytest.FixtureRequest, held: list[HeldModel]
) -> None:
    from accelerate import Accelerator
    from trl.generation import vllm_generation

    from nextturn.train.overrides import vllm_settings

    folder = resolve(str(request.getfixturevalue(kind)))
    args = SimpleNamespace(
        use_vllm=True, vllm_mode="colocate", per_device_train_batch_size=2, steps_per_generation=4,
        vllm_tensor_parallel_size=1,
    )  # fmt: skip
    model = load_model(folder, "auto", "cpu")
    with vllm_settings(colocated_settings(args, folder, RolloutSection(samples=3), False)):
        vllm_generation.VLLMGeneration(model, Accelerator(cpu=True), load_tokenizer(folder), max_num_seqs=8)
    assert vllm_generation.LLM is HeldModel, "afterwards trl's module is as it was"
    settings = held[0].settings
    assert (settings["max_num_seqs"], settings["enable_prefix_caching"]) == (24, cached)
    assert settings["model"] == str(folder.path), "all else is trl's own"
    assert settings["distributed_executor_backend"] == "external_launcher"


def test_a_question_too_long_for_trls_vllm_is_named_before_anything_is_generated() -> None:
    llm: Any = SimpleNamespace(llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=100)))
    engine = ColocatedVllm(llm, None, HfEngine(None, None))
    with pytest.raises(BadInput):
        list(engine.stream([Request((1,) * 11, 100, ())]))


@pytest.mark.parametrize(
    ("probe", "train"),
    [
        ({}, {"use_vllm": False}),
        ({}, {"vllm_mode": "server"}),
        ({}, {"vllm_tensor_parallel_size": 2}),
        ({"dtype": "float32"}, {}),
        ({"vllm": {"enforce_eager": True}}, {}),
        ({"engine": "openai"}, {}),
    ],
)
def test_the_inline_probe_asks_vllm_only_where_grpo_has_it(
    probe: dict[str, Any], train: dict[str, Any], tmp_path: Path
) -> None:
    path = write_recipe(tmp_path, "nowhere", probe={"engine": "vllm"} | probe, train=VLLM | train)
    with pytest.raises(RecipeError):
        load_grpo_recipe(path)
    assert load_grpo_recipe(path, ["--probe.when", "watch", "--probe.engine", "vllm"]).probe
