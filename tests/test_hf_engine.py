"""The hf engine: same tokens as transformers' own generate, shared prefill, seeds that no batch can change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.engines.base import Request, collect, item_seed
from probe.engines.hf import HfEngine, _batches
from probe.errors import EngineError
from probe.models import load_model, load_tokenizer, resolve

PROMPTS = [(5, 9, 30, 31), (7, 8), (100, 101, 102, 103, 104, 105, 106), (7, 8, 9)]


@pytest.fixture(scope="module", params=["tiny_model", "tiny_chatml"])
def parts(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    folder = resolve(str(request.getfixturevalue(request.param)))
    return load_model(folder, "float32", "cpu"), load_tokenizer(folder)


def requests(**options: Any) -> list[Request]:
    return [Request(prompt, 12, (), seed=index, **options) for index, prompt in enumerate(PROMPTS)]


def test_greedy_tokens_equal_those_of_generate(parts: tuple[Any, Any]) -> None:
    import torch

    model, tokenizer = parts
    done = collect(HfEngine(model, tokenizer), requests())
    for prompt, completion in zip(PROMPTS, done, strict=True):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            expected = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=None
            )
        assert completion.text == tokenizer.decode(expected[0, len(prompt) :].tolist())
        assert (completion.tokens, completion.finish) == (12, "length")


def test_what_a_request_draws_does_not_depend_on_its_batch(parts: tuple[Any, Any]) -> None:
    together = collect(HfEngine(*parts), requests(temperature=1.0))
    alone = [collect(HfEngine(*parts, batch_tokens=1), [request])[0] for request in requests(temperature=1.0)]
    assert together == alone


def test_one_prompt_at_many_temperatures_is_prefilled_once(parts: tuple[Any, Any], monkeypatch: Any) -> None:
    engine = HfEngine(*parts)
    prefilled = []
    original = engine._prefill
    monkeypatch.setattr(engine, "_prefill", lambda prompts: prefilled.extend(prompts) or original(prompts))
    asked = [Request(PROMPTS[0], 6, (), temperature, seed) for temperature in (0.0, 0.7, 1.0) for seed in (1, 2)]
    done = collect(engine, asked)
    assert prefilled == [PROMPTS[0]]
    assert done[0] == done[1], "greedy completions of one prompt are equal"
    assert len({completion.text for completion in done[2:]}) == 4, "four seeds and temperatures, four texts"


def test_a_stop_token_ends_a_row_and_is_left_out(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    (whole,) = collect(HfEngine(model, tokenizer), [Request(PROMPTS[0], 12, ())])
    ids = _ids(model, PROMPTS[0], 12)
    first = ids.index(ids[4])
    done = collect(HfEngine(model, tokenizer), [Request(PROMPTS[0], 12, (ids[4],)), *requests()])
    assert (done[0].tokens, done[0].finish) == (first, "stop")
    assert whole.text.startswith(done[0].text)
    assert [completion.tokens for completion in done[1:]] == [12] * 4, "the other rows go on after it has left"


def test_temperature_sampling_follows_the_model_distribution(parts: tuple[Any, Any]) -> None:
    import torch

    model, tokenizer = parts
    n = 600
    done = collect(HfEngine(model, tokenizer), [Request(PROMPTS[1], 1, (), 0.3, item_seed(0, i)) for i in range(n)])
    with torch.no_grad():
        probabilities = (model(torch.tensor([PROMPTS[1]])).logits[0, -1].float() / 0.3).softmax(-1)
    # Texts, since many single bytes decode to the same replacement character.
    texts = [tokenizer.decode([token]) for token in range(len(probabilities))]
    top = {texts[token] for token in probabilities.topk(200).indices.tolist()}
    expected = sum(p for p, text in zip(probabilities.tolist(), texts, strict=True) if text in top)
    seen = sum(completion.text in top for completion in done) / n
    assert 0.1 < expected < 0.95
    assert abs(seen - expected) < 5 * (expected * (1 - expected) / n) ** 0.5 + 0.01


def test_batches_hold_every_request_once_and_keep_to_the_budget() -> None:
    asked = [Request(tuple(range(1, 2 + index % 7)), 10, (), 1.0, index) for index in range(50)]
    batches = list(_batches([one.prompt_ids for one in asked], [one.max_tokens for one in asked], 60))
    indices = [index for batch in batches for group in batch for index in group]
    assert sorted(indices) == list(range(50))
    for batch in batches:
        rows = sum(len(group) for group in batch)
        widest = max(len(asked[group[0]].prompt_ids) + 10 for group in batch)
        assert len(batch) == 1 or rows * widest <= 60


def test_item_seeds_differ_by_every_part() -> None:
    seeds = {item_seed(s, name, t) for s in (0, 1) for name in ("a", "b") for t in (0.7, 1.0)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def _ids(model: Any, prompt: tuple[int, ...], n: int) -> list[int]:
    import torch

    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, eos_token_id=None
        )
    return out[0, len(prompt) :].tolist()


def test_weights_that_are_not_numbers_make_no_text(tiny_chatml: Path) -> None:
    folder = resolve(str(tiny_chatml))
    model = load_model(folder, "float32", "cpu")
    model.model.norm.weight.data[3] = float("nan")
    with pytest.raises(EngineError, match="not numbers"):
        collect(HfEngine(model, load_tokenizer(folder)), [Request((5, 6, 7), 4, (0,))])
