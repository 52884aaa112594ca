"""Completions and scores from OpenAI-compatible servers, through POST /completions.

No chat endpoint can open a user turn, so prompts are sent as token ids. Every request states all sampling settings, because
servers such as vLLM take unstated ones from the model's generation_config.json. Scores follow lm-evaluation-harness: the
prompt is echoed with its log-probabilities, and one token is generated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from nextturn.probe.command.errors import CannotScore, EngineError
from nextturn.probe.command.sections import ServerSection
from nextturn.probe.engines.base import Completion, Request, ScoreRequest
from nextturn.probe.engines.client import PLAIN_EXTRAS, PLAIN_SAMPLING, Client, ServerReply, counted_tokens

# Special tokens stay in the text, and only the temperature shapes the distribution.
_EXTRAS = {"skip_special_tokens": False, "add_special_tokens": False, **PLAIN_EXTRAS}
# Some servers give log-probabilities after the temperature, so it has to be 1.
_SCORE = {"max_tokens": 1, "temperature": 1, "seed": 0, "echo": True, "logprobs": 1}
# After so many failed requests with no completion between them, the cause concerns every request.
_MAX_FAILURES = 32
# The most that OpenAI's protocol allows.
_MAX_STOPS = 4


class OpenAIEngine:
    """Completions from one or several servers with the same model.

    Args:
        section: The servers and how they are asked.
        tokenizer: The model's own; turns stop tokens into text, and counts tokens where a server does not.
    """

    name = "openai"

    def __init__(self, section: ServerSection, tokenizer: Any) -> None:
        self.section = section
        self.tokenizer = tokenizer
        self.client = Client(section, max_failures=_MAX_FAILURES)

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return each request by itself: the server forms its own batches."""
        return [[index] for index in range(len(requests))]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yield (index, completion) as replies come.

        Raises:
            EngineError: Requests failed: at the end, or at once if many in a row did.
        """
        failed: list[ServerReply] = []
        bodies = [self._completion_body(request) for request in requests]
        for index, reply in self.client.stream("/completions", bodies, _unusable):
            if reply.failure is None and reply.body is not None:
                yield index, self._completion(requests[index], reply.body)
            else:
                failed.append(reply)
        self._raise_any(failed, len(requests))

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yield (index, log p). The shortest request goes first and alone, to see whether the server can score."""
        whole = [request.prefix_ids + request.target_ids for request in requests]
        order = sorted(range(len(requests)), key=lambda index: len(whole[index]))
        failed: list[ServerReply] = []
        for indices in (order[:1], order[1:]):
            bodies = [{**self._prompt(whole[index]), **_SCORE} for index in indices]
            for position, reply in self.client.stream("/completions", bodies, _unusable):
                index = indices[position]
                score = _scored(requests[index], reply)
                if isinstance(score, float):
                    yield index, score
                elif index == order[0] and score.failure in ("refused", "no_logprobs"):
                    hint = self.client.hint(score)
                    raise CannotScore(f"the server gives no log-probabilities of a prompt: {score.detail}{hint}")
                else:
                    failed.append(score)
        self._raise_any(failed, len(requests))

    def close(self) -> None:
        self.client.close()

    def _raise_any(self, failed: Sequence[ServerReply], requests: int) -> None:
        if failed:
            example = {reply.failure: f"{reply.detail}{self.client.hint(reply)}" for reply in reversed(failed)}
            counts = Counter(reply.failure for reply in failed).most_common()
            reasons = "; ".join(f"{count} {reason}, such as: {example[reason]}" for reason, count in counts)
            kept = "completed replies are stored, and the same command asks for the rest"
            raise EngineError(f"{len(failed)} of {requests} requests failed ({reasons}); {kept}")

    def _completion_body(self, request: Request) -> dict[str, Any]:
        stops = self._stop_strings(request)[:_MAX_STOPS]
        body = {**self._prompt(request.prompt_ids), "temperature": request.temperature}
        body |= {"max_tokens": request.max_tokens} | {
            "seed": request.seed & 0x7FFFFFFF,
            **({"stop": stops} if stops else {}),
        }
        return body | ({"stop_token_ids": list(request.stop_ids)} if self.section.extras else {})

    def _prompt(self, ids: tuple[int, ...]) -> dict[str, Any]:
        extras = _EXTRAS if self.section.extras else {}
        return {"model": self.client.model, "prompt": list(ids), **PLAIN_SAMPLING, **extras}

    def _stop_strings(self, request: Request) -> list[str]:
        decode = self.tokenizer.decode
        texts = (str(decode([token], clean_up_tokenization_spaces=False)) for token in request.stop_ids)
        return [text for text in dict.fromkeys(texts) if text.strip()]

    def _completion(self, request: Request, body: dict[str, Any]) -> Completion:
        """Return a completion without its stop token, in the text as well as in the count."""
        choice = body["choices"][0]
        text = whole = choice["text"]
        for stop in self._stop_strings(request):
            text = text.partition(stop)[0]
        stopped = text != whole or choice["finish_reason"] == "stop"
        tokens = counted_tokens(body, "completion")
        if text != whole or not isinstance(tokens, int):
            tokens = len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        elif stopped:
            tokens = max(0, tokens - 1)  # servers count the stop token
        return Completion(text, tokens, "stop" if stopped else "length")


def _scored(request: ScoreRequest, reply: ServerReply) -> float | ServerReply:
    """Return the target's log-probability, or a failed reply that says why there is none."""
    if reply.failure is not None or reply.body is None:
        return reply
    logprobs = reply.body["choices"][0].get("logprobs")
    values = (logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None) or []
    start, end = len(request.prefix_ids), len(request.prefix_ids) + len(request.target_ids)
    scores = values[start:end]
    if len(values) < end or not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        count = sum(value is not None for value in values)
        return ServerReply(None, "no_logprobs", f"token_logprobs holds {count} numbers for a prompt of {end} tokens")
    return math.fsum(scores)


def _unusable(body: dict[str, Any]) -> str | None:
    """Return why a reply is no completion, or None if it is one."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
        return "no_text"
    return None if choice.get("finish_reason") in ("stop", "length") else "unfinished"
