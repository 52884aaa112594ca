"""The hf engine: the tokens of transformers' `generate`, a shared prefill, samples that no batch changes, scores of a plain
forward pass, and grounding by its formula."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import EngineError
from nextturn.probe.engines import hf
from nextturn.probe.engines.base import Request, ScoreRequest, collect, item_seed
from nextturn.probe.engines.hf import CPU_TOKENS, MOST_ROWS, HfEngine, cache_bytes
from nextturn.probe.measures.followup import NEUTRAL, contexts, grounding
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from nextturn.probe.text.chat import Chat
from support.model_parts import LargestTensor, known_config, on_gpu_with

PROMPTS = [(5, 9, 30, 31), (7, 8), (100, 101, 102, 103, 104, 105, 106), (7, 8, 9)]
TALK = [{"role": "user", "content": "How many pens?"}, {"role": "assistant", "content": "There are 7 pens in it."}]


@pytest.fixture(scope="module", params=["tiny_model", "tiny_chatml"])
def engine(request: pytest.FixtureRequest) -> HfEngine:
    folder = resolve(str(request.getfixturevalue(request.param)))
    return HfEngine(load_model(folder, "float32", "cpu"), load_tokenizer(folder))


def small(engine: HfEngine, batch_tokens: int) -> HfEngine:
    return HfEngine(engine.model, engine.tokenizer, batch_tokens)


def requests(**options: Any) -> list[Request]:
    return [Request(prompt, 6, (), seed=index, **options) for index, prompt in enumerate(PROMPTS)]


def generated(model: Any, prompt: tuple[int, ...], n: int = 6) -> list[int]:
    """Greedy ids as transformers makes them."""
    import torch

    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=n, do_sample=False, eos_token_id=None)
    return out[0, len(prompt) :].tolist()


def test_greedy_tokens_equal_those_of_generate_and_end_at_a_stop_token(engine: HfEngine) -> None:
    for prompt, completion in zip(PROMPTS, collect(engine, requests()), strict=True):
        assert completion.ids == tuple(generated(engine.model, prompt))
        assert (completion.tokens, completion.finish) == (6, "length")
        assert completion.text == engine.tokenizer.decode(list(completion.ids))
    ids = generated(engine.model, PROMPTS[0])
    stop = ids[4]
    done = collect(engine, [Request(PROMPTS[0], 6, (stop,)), *requests()])
    assert (done[0].tokens, done[0].finish) == (ids.index(stop), "stop")
    assert done[0].text == engine.tokenizer.decode(ids[: ids.index(stop)]), "the stop token is left out"
    assert [completion.tokens for completion in done[1:]] == [6] * 4, "the other rows go on after it has left"


def test_a_sample_does_not_depend_on_its_batch(engine: HfEngine) -> None:
    together = collect(engine, requests(temperature=1.0))
    alone = [collect(small(engine, 1), [request])[0] for request in requests(temperature=1.0)]
    assert together == alone


def test_one_prompt_at_many_temperatures_is_prefilled_once(engine: HfEngine, monkeypatch: Any) -> None:
    prefilled: list[tuple[int, ...]] = []
    original = engine._prefill
    monkeypatch.setattr(engine, "_prefill", lambda prompts: prefilled.extend(prompts) or original(prompts))
    asked = [Request(PROMPTS[0], 6, (), temperature, seed) for temperature in (0.0, 0.7, 1.0) for seed in (1, 2)]
    done = collect(engine, asked)
    assert prefilled == [PROMPTS[0]]
    assert done[0] == done[1], "greedy completions of one prompt are equal"
    assert len({completion.text for completion in done[2:]}) == 4, "four seeds and temperatures, four texts"


def test_a_decode_step_copies_no_keys_and_gives_the_logits_of_a_plain_step(engine: HfEngine, monkeypatch: Any) -> None:
    """Both ways of it over the same padded rows: the cache grows in place, and no key is repeated for the heads of its group."""
    import torch
    from transformers.integrations import sdpa_attention

    from nextturn.probe.engines.decoding import PreallocatedLayer, preallocate, shared_keys

    def steps(cheap: bool) -> tuple[list[torch.Tensor], Any]:
        logits, cache, mask = engine._prefill(PROMPTS)
        if cheap:
            monkeypatch.setattr(sdpa_attention, "repeat_kv", None)
            preallocate(cache, 3)
            cache.reorder_cache(torch.arange(len(PROMPTS)))  # as when rows leave: the room stays
        steps = []
        for token in (8, 9, 10):
            mask = torch.cat([mask, mask.new_ones(len(PROMPTS), 1)], dim=1)
            ids, positions = torch.full((len(PROMPTS), 1), token), mask.sum(dim=1, keepdim=True) - 1
            with shared_keys() if cheap else nullcontext():
                logits, cache = engine._forward(ids, mask, positions, cache)
            steps.append(logits)
        return steps, cache

    plain, _ = steps(cheap=False)
    cheap, cache = steps(cheap=True)
    for one, other in zip(plain, cheap, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    grown = [layer for layer in cache.layers if isinstance(layer, PreallocatedLayer)]
    assert grown and all(layer.keys.data_ptr() == layer._buffers[0].data_ptr() for layer in grown)
    assert all(layer.keys.shape[-2] == layer._buffers[0].shape[-2] == max(map(len, PROMPTS)) + 3 for layer in grown)


def test_attention_is_restored_after_a_failure_and_when_the_last_of_several_threads_is_done() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from nextturn.probe.engines.decoding import shared_keys

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    first, second = shared_keys(), shared_keys()  # as of two engines in two threads
    first.__enter__()
    with pytest.raises(EngineError), second:
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is not before
        first.__exit__(None, None, None)
        raise EngineError("no memory")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before


def test_temperature_sampling_follows_the_model_distribution(engine: HfEngine) -> None:
    import torch

    n = 600
    done = collect(engine, [Request(PROMPTS[1], 1, (), 0.3, item_seed(0, i)) for i in range(n)])
    with torch.no_grad():
        probabilities = (engine.model(torch.tensor([PROMPTS[1]])).logits[0, -1].float() / 0.3).softmax(-1)
    top = set(probabilities.topk(200).indices.tolist())
    expected = sum(probabilities[token].item() for token in top)
    seen = sum(completion.ids[0] in top for completion in done) / n
    assert 0.1 < expected < 0.95
    assert abs(seen - expected) < 5 * (expected * (1 - expected) / n) ** 0.5 + 0.01


def test_batches_hold_every_request_once_and_keep_to_the_budget() -> None:
    asked = [Request(tuple(range(1, 2 + index % 7)), 10, (), 1.0, index) for index in range(50)]
    batches = HfEngine(None, None, batch_tokens=60).batches(asked)
    assert sorted(index for batch in batches for index in batch) == list(range(50))
    for batch in batches:
        prompts = {asked[index].prompt_ids for index in batch}
        widest = max(len(prompt) + 10 for prompt in prompts)
        assert len(prompts) == 1 or len(batch) * widest <= 60


def test_the_computed_size_of_a_cache_is_that_of_the_model_s_cache(engine: HfEngine) -> None:
    import torch

    with torch.no_grad():
        cache = engine.model(torch.ones(3, 7, dtype=torch.long), use_cache=True).past_key_values
    held = 0
    for layer in cache.layers:
        for value in vars(layer).values():
            for tensor in value.values() if isinstance(value, dict) else (value,):
                held += tensor.numel() * tensor.element_size() if torch.is_tensor(tensor) else 0
    token, row = cache_bytes(engine.model.config, 4) or (0, 0)
    assert held == 3 * (row + 7 * token)
    # 12 KiB a token in its six layers with attention, and 18.8 MiB a row in the others.
    assert cache_bytes(known_config(), 2) == (12 * 2**10, 18 * (16 * 128 * 128 * 4 + 6144 * 4 * 2))


@pytest.mark.parametrize(("gigabytes", "most"), [(24, 340), (80, MOST_ROWS)])
def test_batches_are_as_large_as_the_free_memory_holds(gigabytes: int, most: int, monkeypatch: Any) -> None:
    asked = [Request((n,) * 300, 1024, ()) for n in range(1129)]
    assert len(HfEngine(None, None).batches(asked)) == math.ceil(1129 / (CPU_TOKENS // 1324)) == 95, "on a CPU as ever"
    model = on_gpu_with(gigabytes * 10**9, monkeypatch)
    rows = len(HfEngine(model, None).batches(asked)[0])
    assert rows == pytest.approx(most, abs=10)
    assert rows * (1324 * 12 * 2**10 + 19.8e6) < gigabytes * 10**9, "what the cache alone takes"
    assert len(HfEngine(model, None, CPU_TOKENS).batches(asked)) == 95, "the recipe's own number counts"


@pytest.mark.parametrize("engine", ["tiny_chatml"], indirect=True)
def test_a_batch_that_does_not_fit_is_split(
    engine: HfEngine, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch that does not fit in memory is split."""
    import torch

    tight, sizes = HfEngine(engine.model, engine.tokenizer), []
    prefill = tight._prefill

    def short_of_memory(prompts: Any) -> Any:
        sizes.append(len(prompts))
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return prefill(prompts)

    monkeypatch.setattr(tight, "_prefill", short_of_memory)
    assert collect(tight, requests()) == collect(engine, requests())
    assert sizes == [4, 2, 1, 1, 1, 1]
    assert "a batch of 4 rows did not fit" in capsys.readouterr().out
    monkeypatch.setattr(tight, "_prefill", lambda prompts: short_of_memory([*prompts, *prompts]))
    with pytest.raises(EngineError):
        collect(tight, requests())


@pytest.mark.parametrize("engine", ["tiny_chatml"], indirect=True)
def test_the_model_is_loaded_with_the_first_request_and_again_after_a_close(engine: HfEngine) -> None:
    loads: list[Any] = []
    lazy = HfEngine(None, engine.tokenizer, load=lambda: loads.append(1) or engine.model)
    lazy.batches(requests())
    assert list(lazy.stream([])) == [] and loads == []
    assert collect(lazy, requests()) == collect(lazy, requests()) == collect(engine, requests())
    assert len(loads) == 1
    lazy.close()
    collect(lazy, requests())
    assert len(loads) == 2


def test_weights_that_are_not_numbers_make_no_text(tiny_chatml: Path) -> None:
    folder = resolve(str(tiny_chatml))
    model = load_model(folder, "float32", "cpu")
    model.model.norm.weight.data[3] = float("nan")
    with pytest.raises(EngineError):
        collect(HfEngine(model, load_tokenizer(folder)), [Request((5, 6, 7), 4, (0,))])


def plain(model: Any, request: ScoreRequest) -> float:
    """log p by one forward pass over the whole text, without cache, padding or batch."""
    import torch

    with torch.no_grad():
        log_p = model(torch.tensor([request.prefix_ids + request.target_ids])).logits[0].log_softmax(dim=-1)
    start = len(request.prefix_ids) - 1
    return sum(log_p[start + place, token].item() for place, token in enumerate(request.target_ids))


def test_scores_equal_a_plain_forward_pass_whatever_shares_the_batch(engine: HfEngine) -> None:
    import torch

    drawn = torch.Generator().manual_seed(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 900, (count,), generator=drawn).tolist())

    long, short, single = ids(70), ids(9), ids(1)
    prefixes = ((long, 5), (short, 1), (long, 20), (single, 3), (short, 7), (long, 1))
    asked = [ScoreRequest(prefix, ids(count)) for prefix, count in prefixes]
    scored = dict(small(engine, 300).score(asked))
    assert sorted(scored) == list(range(6))
    for index, request in enumerate(asked):
        assert scored[index] == pytest.approx(plain(engine.model, request), abs=1e-3)
        assert dict(engine.score([request]))[0] == pytest.approx(scored[index], abs=1e-3)


def test_the_number_of_logits_that_are_held_changes_no_score(engine: HfEngine, monkeypatch: Any) -> None:
    asked = [ScoreRequest((5, 6, 7), tuple(range(10, 10 + n))) for n in (1, 9, 4)] + [ScoreRequest((8,), (9, 10))]
    whole = dict(engine.score(asked))
    for tokens in (1, 3, 8):
        monkeypatch.setattr(hf, "LOGITS_BYTES", tokens * len(asked) * engine.model.config.vocab_size * 4)
        assert dict(engine.score(asked)) == pytest.approx(whole, abs=1e-4)


def test_grounding_over_a_large_vocabulary_holds_few_logits(monkeypatch: Any) -> None:
    """16 user turns of 24 tokens over Qwen3.5's vocabulary: all their logits would take 381 MB."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=248_320, tie_word_embeddings=True, **sizes)).eval()
    asked = [ScoreRequest((1, 2, n), tuple(range(n, n + 24))) for n in range(16)]
    monkeypatch.setattr(hf, "LOGITS_BYTES", 40_000_000)
    with LargestTensor() as largest:
        scored = dict(HfEngine(model, None).score(asked))
    assert 0 < largest.bytes <= 40_000_000
    assert scored[3] == pytest.approx(plain(model, asked[3]), abs=1e-3)


def test_grounding_is_per_token_after_the_answer_and_after_the_neutral_one(engine: HfEngine) -> None:
    chat = Chat(engine.tokenizer)
    neutral = [TALK[0], {"role": "assistant", "content": NEUTRAL}]
    assert contexts({"messages": TALK}) == (TALK, neutral)
    assert grounding(4, -6.0, -9.0) == {"grounding": 0.75, "log_p": -1.5}
    target = chat.text_ids("And then?")
    asked = [ScoreRequest(chat.user_prefix_ids(context), target) for context in contexts({"messages": neutral})]
    scores = dict(engine.score(asked))
    assert grounding(3, scores[0], scores[1])["grounding"] == 0, "after the neutral answer itself"
