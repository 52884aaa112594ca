"""The openai engine against a real server that holds a tiny model: it must give what the model in process gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nextturn.probe.command.errors import CannotScore, EngineError
from nextturn.probe.command.sections import ServerSection
from nextturn.probe.engines.base import Completion, Request, ScoreRequest, collect
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.engines.openai import OpenAIEngine
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from support.loopback import Answer, Loopback, Seen, completion_reply
from support.model_server import model_server, token_logprobs

TURNS = ("Why not?", "The answer is 7. Do you see why?", "Hello")


@pytest.fixture(scope="module")
def parts(tiny_chatml: Any) -> tuple[Any, Any]:
    folder = resolve(str(tiny_chatml))
    return load_model(folder, "float32", "cpu"), load_tokenizer(folder)


def section(url: str, **options: Any) -> ServerSection:
    return ServerSection(urls=(url,), api_key_env="NEXTTURN_TEST_KEY", **{"model": "tiny", **options})


def prompts(tokenizer: Any) -> list[tuple[int, ...]]:
    return [tuple(tokenizer(f"<|im_start|>user\n{turn}<|im_end|>\n")["input_ids"]) for turn in TURNS]


def stop_token(model: Any, tokenizer: Any, prompt: tuple[int, ...]) -> int:
    """A token of the model's own greedy completion that its text stands for alone, so that it can stop there."""
    (made,) = collect(HfEngine(model, tokenizer), [Request(prompt, 12, ())])
    for place, token in enumerate(made.ids[2:], start=2):
        text, before = tokenizer.decode([token]), tokenizer.decode(list(made.ids[:place]))
        if text.strip() and text not in before and tokenizer(text, add_special_tokens=False)["input_ids"] == [token]:
            return token
    raise AssertionError("no such token")


@pytest.mark.parametrize("extras", [True, False])
def test_completions_equal_those_of_the_model_in_process(parts: tuple[Any, Any], extras: bool) -> None:
    model, tokenizer = parts
    stop = stop_token(model, tokenizer, prompts(tokenizer)[0])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    requests = [Request(ids, 12, (stop, end)) for ids in prompts(tokenizer)] + [Request(prompts(tokenizer)[0], 5, ())]
    requests += [Request(ids, 12, (), 1.0, seed) for seed, ids in enumerate(prompts(tokenizer))]
    with Loopback(model_server(model, tokenizer)) as server:
        engine = OpenAIEngine(section(server.url, extras=extras), tokenizer)
        done = collect(engine, requests)
    # A server does not say which ids it made.
    assert done == [replace(made, ids=()) for made in collect(HfEngine(model, tokenizer), requests)]
    assert {completion.finish for completion in done} == {"stop", "length"}


def test_scores_equal_the_sum_of_the_targets_own_log_probabilities(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    target = tuple(tokenizer(" So what is 4 + 5?", add_special_tokens=False)["input_ids"])
    requests = [ScoreRequest(ids, target) for ids in prompts(tokenizer)]
    with Loopback(model_server(model, tokenizer)) as server:
        scores = dict(OpenAIEngine(section(server.url), tokenizer).score(requests))
        assert len(server.requests) == 3
    for index, request in enumerate(requests):
        values = token_logprobs(model, request.prefix_ids + request.target_ids)
        assert scores[index] == pytest.approx(sum(values[len(request.prefix_ids) - 1 :]), abs=1e-5)


def test_a_request_says_everything_that_shapes_the_completion(parts: tuple[Any, Any]) -> None:
    _, tokenizer = parts
    blank, specials = tokenizer("\n", add_special_tokens=False)["input_ids"], tokenizer.all_special_ids
    stops = (*blank, *specials, *tokenizer("abcdefgh", add_special_tokens=False)["input_ids"])
    request = Request((5, 6), 7, stops, 0.7, 2**62 + 5)
    with Loopback({"/completions": lambda seen: completion_reply("Why?")}) as server:
        collect(OpenAIEngine(section(server.url), tokenizer), [request])
        collect(OpenAIEngine(section(server.url, extras=False), tokenizer), [request])
    rich, plain = (seen.body for seen in server.requests)
    assert rich["stop_token_ids"] == list(stops)
    assert (rich["skip_special_tokens"], rich["add_special_tokens"], rich["top_k"]) == (False, False, -1)
    for body in (rich, plain):
        assert (body["model"], body["max_tokens"], body["temperature"], body["top_p"]) == ("tiny", 7, 0.7, 1)
        assert 0 <= body["seed"] < 2**31
        assert 1 <= len(body["stop"]) <= 4
        assert all(stop.strip() for stop in body["stop"])
    assert rich["prompt"] == plain["prompt"] == [5, 6]
    assert not {"stop_token_ids", "skip_special_tokens", "add_special_tokens", "top_k"} & set(plain)


def test_text_is_cut_at_a_stop_string_and_counted_here_where_the_server_does_neither(parts: tuple[Any, Any]) -> None:
    _, tokenizer = parts
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    counted = len(tokenizer("Why is that?", add_special_tokens=False)["input_ids"])
    replies = {
        "stop": completion_reply("Why is that?<|im_end|>\n<|im_start|>assistant\nBecause", "length", 12),
        "length": {"choices": [{"text": "Why is that?", "finish_reason": "length"}]},
    }
    for finish, reply in replies.items():
        with Loopback({"/completions": lambda seen, reply=reply: reply}) as server:
            (done,) = collect(OpenAIEngine(section(server.url), tokenizer), [Request((5,), 12, (end,))])
        assert done == Completion("Why is that?", counted, finish)  # type: ignore[arg-type]


def test_where_some_requests_fail_the_others_come_first_and_the_error_counts_the_rest(parts: tuple[Any, Any]) -> None:
    def some(seen: Seen) -> Any:
        if seen.body["max_tokens"] == 3:
            return Answer(400, {"error": {"message": "maximum context length is 8"}})
        return completion_reply("", "abort") if seen.body["max_tokens"] == 4 else completion_reply("Why?")

    requests = [Request((5,), 3 if index < 2 else 4 if index < 5 else 9, ()) for index in range(20)]
    with Loopback({"/completions": some}) as server:
        stream = OpenAIEngine(section(server.url, attempts=2), parts[1]).stream(requests)
        done = []
        with pytest.raises(EngineError) as caught:
            for index, _ in stream:
                done.append(index)
    assert sorted(done) == list(range(5, 20))
    for part in ("5 of 20 requests failed", "3 unfinished", "2 refused", "maximum context length is 8"):
        assert part in str(caught.value)


def scored(*values: float | None) -> dict[str, Any]:
    return {"choices": [{"text": "", "finish_reason": "length", "logprobs": {"token_logprobs": list(values)}}]}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (completion_reply("Hi"), "0 numbers"),
        (Answer(400, {"error": {"message": "echo is not supported"}}), "echo is not supported"),
        (scored(*[None] * 9), "0 numbers"),
        (scored(-1.0), "1 numbers"),
    ],
)
def test_a_server_without_log_probabilities_is_asked_once(parts: tuple[Any, Any], reply: Any, why: str) -> None:
    with Loopback({"/completions": lambda seen: reply}) as server:
        engine = OpenAIEngine(section(server.url), parts[1])
        with pytest.raises(CannotScore, match=why):
            list(engine.score([ScoreRequest((5, 6), (7,))] * 100))
        assert len(server.requests) == 1
