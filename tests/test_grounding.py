"""Scores equal those of a plain forward pass, and grounding is what its formula says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from probe.chat import Chat
from probe.engines.base import ScoreRequest
from probe.engines.hf import HfEngine
from probe.measures.grounding import NEUTRAL, UNMEASURED, groundings, score_requests
from probe.models import load_model, load_tokenizer, resolve

TALK = [{"role": "user", "content": "How many pens?"}, {"role": "assistant", "content": "There are 7 pens in it."}]


@pytest.fixture(scope="module", params=["tiny_chatml", "tiny_model"])
def engine(request: pytest.FixtureRequest) -> HfEngine:
    folder = resolve(str(request.getfixturevalue(request.param)))
    return HfEngine(load_model(folder, "float32", "cpu"), load_tokenizer(folder), batch_tokens=300)


def plain(model: Any, request: ScoreRequest) -> float:
    """One forward pass over the whole text, without cache, padding or batch."""
    import torch

    ids = torch.tensor([request.prefix_ids + request.target_ids])
    with torch.no_grad():
        log_p = model(input_ids=ids).logits[0].log_softmax(dim=-1)
    start = len(request.prefix_ids) - 1
    return sum(log_p[start + place, token].item() for place, token in enumerate(request.target_ids))


def test_scores_equal_a_plain_forward_pass_whatever_shares_the_batch(engine: HfEngine) -> None:
    import torch

    drawn = torch.Generator().manual_seed(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 900, (count,), generator=drawn).tolist())

    long, short, single = ids(70), ids(9), ids(1)
    asked = [
        ScoreRequest(prefix, ids(count))
        for prefix, count in ((long, 5), (short, 1), (long, 20), (single, 3), (short, 7), (long, 1))
    ]
    scored = dict(engine.score(asked))
    assert sorted(scored) == list(range(6))
    for index, request in enumerate(asked):
        assert scored[index] == pytest.approx(plain(engine.model, request), abs=1e-3)
        assert dict(engine.score([request]))[0] == pytest.approx(scored[index], abs=1e-3)


def test_the_probabilities_of_all_next_tokens_add_up_to_one(engine: HfEngine) -> None:
    vocabulary = engine.model.config.vocab_size
    asked = [ScoreRequest((5, 6, 7), (token,)) for token in range(vocabulary)]
    assert math.fsum(math.exp(log_p) for _, log_p in engine.score(asked)) == pytest.approx(1, abs=1e-3)


def test_a_turn_is_scored_after_its_answer_and_after_the_neutral_one(engine: HfEngine) -> None:
    chat = Chat(engine.tokenizer)
    with_answer, without = score_requests(TALK, "Why 7?", chat, "history")
    assert with_answer.target_ids == without.target_ids == chat.text_ids("Why 7?")
    assert with_answer.prefix_ids == chat.user_prefix_ids(TALK)
    assert without.prefix_ids == chat.user_prefix_ids([TALK[0], {"role": "assistant", "content": NEUTRAL}])


def test_grounding_is_per_token_and_an_empty_turn_has_none(engine: HfEngine) -> None:
    chat = Chat(engine.tokenizer)
    requests = [score_requests(TALK, turn, chat, "history") for turn in ("Why 7?", "", "No.")]
    assert requests[1] == []
    found = groundings(requests, iter([-6.0, -9.0, -2.0, -1.0]))
    tokens = [len(chat.text_ids(turn)) for turn in ("Why 7?", "No.")]
    assert (found[0].value, found[0].log_p) == (pytest.approx(3 / tokens[0]), pytest.approx(-6 / tokens[0]))
    assert found[1] == UNMEASURED
    assert found[2].value == pytest.approx(-1 / tokens[1])


def test_a_turn_after_the_neutral_answer_itself_has_grounding_zero(tiny_chatml: Path) -> None:
    folder = resolve(str(tiny_chatml))
    engine = HfEngine(load_model(folder, "float32", "cpu"), load_tokenizer(folder))
    chat = Chat(engine.tokenizer)
    neutral = [TALK[0], {"role": "assistant", "content": NEUTRAL}]
    requests = [score_requests(neutral, "And then?", chat, "history")]
    scores = dict(engine.score(requests[0]))
    assert groundings(requests, iter([scores[0], scores[1]]))[0].value == 0
