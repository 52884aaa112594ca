"""The vLLM engine: what it asks of vLLM and what it makes of the replies, by a stand-in; the real one where it is there.

The stand-in keeps to what the engine relies on: requests by name, finished ones from `step` in any order, the stop
token at the end of a stopped completion, log-probabilities by token for each place of the prompt but the first.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from model_parts import logits, lora_on

from probe.engines import vllm as vllm_engine
from probe.engines import vllm_load
from probe.engines.base import Completion, Request, ScoreRequest, collect
from probe.engines.vllm import VllmEngine, sampling
from probe.errors import BadInput, CannotScore, EngineError
from probe.models import load_model, load_tokenizer, resolve
from probe.settings import VllmSection

STOP = 9


class StandIn:
    """Replies to a prompt with its tokens plus one, stopping at STOP; the newest request is finished first."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.most_known = 0
        self.ended = False
        self.dies = False
        self.known: dict[str, tuple[list[int], dict[str, Any]]] = {}
        self.llm_engine = self.renderer = self.engine_core = self

    def render_cmpl(self, prompts: list[dict[str, Any]]) -> list[list[int]]:
        return [prompt["prompt_token_ids"] for prompt in prompts]

    def add_request(self, name: str, prompt: list[int], options: dict[str, Any]) -> None:
        assert name not in self.known and not self.ended
        assert len(prompt) + options["max_tokens"] <= self.length
        self.known[name] = (prompt, options)
        self.most_known = max(self.most_known, len(self.known))

    def step(self) -> list[Any]:
        if self.dies:
            raise sys.modules["vllm.exceptions"].VLLMError("EngineCore encountered an issue")
        name = list(self.known)[-1]
        prompt, options = self.known.pop(name)
        made = [token + 1 for token in prompt][: options["max_tokens"]]
        stops = STOP in made and STOP in options.get("stop_token_ids", ())
        made = made[: made.index(STOP) + 1] if stops else made
        output = SimpleNamespace(token_ids=made, finish_reason="stop" if stops else "length")
        given = [None, *({token: SimpleNamespace(logprob=-token / 10), -1: None} for token in prompt[1:])]
        return [SimpleNamespace(request_id=name, outputs=[output], prompt_logprobs=given)]

    def shutdown(self) -> None:
        self.ended = True


class Digits:
    def decode(self, tokens: list[int]) -> str:
        return "".join(map(str, tokens))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """Every stand-in that was loaded, in order; a package `vllm` that is just enough to ask it."""
    package = {name: ModuleType(name) for name in ("vllm", *map("vllm.{}".format, ("exceptions", "platforms")))}
    package["vllm.sampling_params"] = ModuleType("vllm.sampling_params")
    errors = {"VLLMError": type("VLLMError", (Exception,), {})}
    errors["VLLMClientError"] = type("VLLMClientError", (errors["VLLMError"],), {})
    vars(package["vllm.exceptions"]).update(errors)
    vars(package["vllm.platforms"])["current_platform"] = SimpleNamespace(is_cpu=lambda: False)
    vars(package["vllm.sampling_params"])["RequestOutputKind"] = SimpleNamespace(FINAL_ONLY="final")
    vars(package["vllm"]).update(SamplingParams=dict, TokensPrompt=dict)
    for name, module in package.items():
        monkeypatch.setitem(sys.modules, name, module)
    loaded: list[StandIn] = []

    def load(*settings: Any) -> StandIn:
        loaded.append(StandIn(settings[-1]))
        return loaded[-1]

    monkeypatch.setattr(vllm_engine, "load", load)
    return loaded


def engine_of(folder: Path, **section: Any) -> VllmEngine:
    return VllmEngine(resolve(str(folder)), Digits(), VllmSection(**section))


def test_only_the_requests_own_stop_tokens_and_seed_reach_vllm() -> None:
    asked = Request((1, 2), 7, (STOP, 3), 0.7, seed=5)
    assert sampling(asked) == {"temperature": 0.7, "max_tokens": 7, "stop_token_ids": [STOP, 3], "seed": 5}
    assert sampling(Request((1,), 7, (), 0.0, seed=5))["seed"] is None, "a greedy completion draws nothing"


def test_completions_come_as_they_finish_and_without_the_stop_token(tiny_chatml: Path, loads: list[StandIn]) -> None:
    asked = [Request((1, 2, 3), 2, (STOP,)), Request((4, STOP - 1, 5), 9, (STOP,)), Request((7, STOP - 1), 9, ())]
    done = list(engine_of(tiny_chatml).stream(asked))
    assert [index for index, _ in done] == [2, 1, 0], "nothing waits for the first request"
    assert dict(done) == {
        0: Completion("23", 2, "length"),
        1: Completion("5", 1, "stop"),
        2: Completion("89", 2, "length"),
    }


def test_vllm_knows_of_a_bounded_number_of_requests(
    tiny_chatml: Path, loads: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "_KNOWN", 4)
    asked = [Request((index, 1), 2, ()) for index in range(11)]
    assert [done.text for done in collect(engine_of(tiny_chatml), asked)] == [f"{index + 1}2" for index in range(11)]
    assert loads[0].most_known == 4


def test_each_request_is_a_batch_and_shared_prefixes_stand_together(tiny_chatml: Path) -> None:
    asked = [Request(prompt, 2, ()) for prompt in [(1, 2), (8, 8), (1, 3), (8, 8)]]
    assert engine_of(tiny_chatml).batches(asked) == [[0], [2], [1], [3]]


def test_an_early_end_leaves_nothing_to_the_next_call(tiny_chatml: Path, loads: list[StandIn]) -> None:
    engine = engine_of(tiny_chatml)
    asked = [Request((index,), 1, ()) for index in range(3)]
    stream: Any = engine.stream(asked)
    next(stream)
    stream.close()
    assert loads[0].ended
    assert [done.text for done in collect(engine, asked)] == ["1", "2", "3"]
    assert len(loads) == 2


def test_a_death_of_vllm_says_how_many_requests_are_left(tiny_chatml: Path, loads: list[StandIn]) -> None:
    engine = engine_of(tiny_chatml)
    stream = engine.stream([Request((index,), 1, ()) for index in range(3)])
    next(stream)
    loads[0].dies = True
    with pytest.raises(EngineError, match=r"2 requests to go.*gpu_memory_utilization"):
        next(stream)
    assert loads[0].ended


def test_it_is_loaded_anew_only_where_the_room_is_too_small(
    tiny_chatml: Path, loads: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "_LEAST_LENGTH", 8)
    engine = engine_of(tiny_chatml)
    for length in (10, 30, 31):
        collect(engine, [Request((1,) * length, 10, ())])
    assert [(load.length, load.ended) for load in loads] == [(40, True), (82, False)], "twice what was needed"


@pytest.mark.parametrize(
    ("limit", "named"), [(None, "max_position_embeddings"), (50, "probe.vllm.max_model_len is 50")]
)
def test_a_request_that_is_too_long_is_named_with_its_lengths(
    tiny_chatml: Path, loads: list[StandIn], limit: int | None, named: str
) -> None:
    with pytest.raises(BadInput, match=rf"4,099 tokens, 4,000 of prompt and 99 for the completion.*{named}"):
        collect(engine_of(tiny_chatml, max_model_len=limit), [Request((1,) * 4000, 99, ()), Request((1,), 98, ())])
    assert not loads


def test_a_score_sums_the_targets_own_log_probabilities(tiny_chatml: Path, loads: list[StandIn]) -> None:
    asked = [ScoreRequest((1, 2), (3, 4)), ScoreRequest((5,), (6,))]
    assert dict(engine_of(tiny_chatml).score(asked)) == pytest.approx({0: -0.7, 1: -0.6})
    with pytest.raises(CannotScore, match="prefix"):
        list(engine_of(tiny_chatml).score([ScoreRequest((), (1,))]))


def test_without_vllm_the_error_says_how_to_install_it(tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(BadInput, match=r"not installed.*pip install -e '.\[gpu\]'.*without the constraints file"):
        collect(engine_of(tiny_chatml), [Request((1,), 1, ())])


def test_auto_means_the_type_of_the_checkpoint(tiny_chatml: Path, smollm2: Path) -> None:
    assert engine_of(tiny_chatml).dtype == "float32", "vLLM itself would take a float32 checkpoint in half precision"
    assert engine_of(smollm2).dtype == str(load_model(resolve(str(smollm2)), "auto", "cpu").dtype).split(".")[1]


def test_an_adapter_is_merged_into_a_folder_once(tiny_chatml: Path, tmp_path: Path, own_cache: Path) -> None:
    import torch

    adapter = resolve(str(lora_on(tiny_chatml, tmp_path / "adapter")))
    whole = vllm_load.whole_folder(adapter, "float32")
    before = (whole / "model.safetensors").stat().st_mtime_ns
    assert vllm_load.whole_folder(adapter, "float32") == whole
    assert (whole / "model.safetensors").stat().st_mtime_ns == before
    merged = resolve(str(whole))
    assert load_tokenizer(merged).chat_template == load_tokenizer(adapter).chat_template
    assert torch.equal(logits(load_model(merged, "auto", "cpu")), logits(load_model(adapter, "auto", "cpu")))
    assert vllm_load.whole_folder(adapter, "bfloat16") != whole


def test_a_killed_process_takes_its_engine_with_it() -> None:
    """vLLM's engine outlives a parent that gets SIGKILL, and keeps the GPU's memory."""
    script = """if True:
        import multiprocessing, os, signal, time
        from probe.engines.vllm_load import end_with_this_process
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        end_with_this_process([child])
        print(child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)"""
    # The child holds this pipe too, so that reading to its end waits for the child's end.
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=20)
    assert ended.returncode == -signal.SIGKILL
    assert int(ended.stdout) > 0


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
def test_real_vllm_agrees_with_the_hf_engine(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from probe.engines.hf import HfEngine

    # What its CPU build needs on a small machine; a GPU takes no notice.
    cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    for name, value in cpu.items():
        monkeypatch.setenv(name, value)
    folder = resolve(str(_wider_llama(tiny_chatml, tmp_path / "wider")))
    tokenizer, model = load_tokenizer(folder), load_model(folder, "float32", "cpu")
    real = VllmEngine(folder, tokenizer, VllmSection(gpu_memory_utilization=0.5, enforce_eager=True))
    asked = [Request((5, 9, 30, index), 8, ()) for index in range(6)]
    (ids,) = model.generate(_row(asked[0].prompt_ids), max_new_tokens=8, do_sample=False, eos_token_id=None).tolist()
    asked.append(Request(asked[0].prompt_ids, 8, (ids[4 + 5],)))
    scores = [ScoreRequest(request.prompt_ids, (7, 8, 9)) for request in asked[:6]]
    sampled = [Request((5, 9, 30), 12, (), 1.0, seed) for seed in range(4)]
    try:
        assert collect(real, asked) == collect(HfEngine(model, tokenizer), asked)
        assert dict(real.score(scores)) == pytest.approx(dict(HfEngine(model, tokenizer).score(scores)), abs=1e-3)
        assert len({completion.text for completion in collect(real, sampled)}) == 4
    finally:
        real.close()


def _row(ids: tuple[int, ...]) -> Any:
    import torch

    return torch.tensor([list(ids)])


def _wider_llama(like: Path, folder: Path) -> Path:
    """As the tiny Llama, with heads of 32: vLLM's attention on a CPU takes none of 16."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig.from_pretrained(like, hidden_size=128, head_dim=32)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    return folder
