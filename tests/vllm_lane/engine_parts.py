"""What the tests of the real vLLM share: an engine on a folder, and prompts after which no token is a near tie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from nextturn.probe.command.sections import VllmSection
from nextturn.probe.engines.base import Completion, Request, collect
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.engines.vllm import VllmEngine
from nextturn.probe.models.folders import ModelFolder, load_model, load_tokenizer, resolve

NEW = 10


@contextmanager
def real_engine(folder: ModelFolder, dtype: str) -> Iterator[VllmEngine]:
    with closing(VllmEngine(folder, load_tokenizer(folder), VllmSection(enforce_eager=True), dtype)) as engine:
        yield engine


def greedy(engine: Any, prompts: list[tuple[int, ...]]) -> list[Completion]:
    return collect(engine, [Request(prompt, NEW, ()) for prompt in prompts])


def sure_prompts(model: Any, gap: float, length: int = 12, among: int = 64) -> list[tuple[int, ...]]:
    """Random prompts on whose greedy way the best token always leads the second by `gap` in its logit.

    Where two tokens are as good as equally likely, rounding picks one, and engines may differ without being wrong.
    """
    import torch

    ids = torch.randint(3, 1000, (among, length), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "output_logits": True}
    with torch.no_grad():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, **options)
    best = torch.stack(made.logits).float().topk(2, dim=-1).values
    sure = (best[..., 0] - best[..., 1]).amin(dim=0) > gap
    return [tuple(row) for row in ids[sure].tolist()]


def assert_equal_greedy(folder: Path, dtype: str, gap: float) -> list[Completion]:
    """vLLM and transformers make the same greedy tokens on the folder; returns them."""
    resolved = resolve(str(folder))
    model, tokenizer = load_model(resolved, dtype, "cpu"), load_tokenizer(resolved)
    prompts = sure_prompts(model, gap)
    assert len(prompts) >= 6, "too few prompts without a near tie for the comparison to mean anything"
    wanted = greedy(HfEngine(model, tokenizer), prompts)
    assert len({made.text for made in wanted}) > len(prompts) // 2, "the model says the same after every prompt"
    with real_engine(resolved, dtype) as engine:
        assert greedy(engine, prompts) == wanted
    return wanted
