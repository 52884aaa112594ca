"""Completions and scores from OpenAI-compatible servers, through raw completions (POST /completions).

Raw, because no chat endpoint can open a user turn. What a server's own settings could change is said in every
request: vLLM, for one, takes top_k, penalties and the like from the model's generation_config.json where a request
is silent. Scores follow lm-evaluation-harness: the prompt echoed with its log-probabilities, one token generated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from nextturn.probe.client import Client, Reply
from nextturn.probe.engines.base import Completion, Request, ScoreRequest
from nextturn.probe.errors import CannotScore, EngineError
from nextturn.probe.settings import ServerSection

PLAIN_SAMPLING = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}
PLAIN_EXTRAS = {"top_k": -1, "min_p": 0, "repetition_penalty": 1}
EXTRAS = {"skip_special_tokens": False, "add_special_tokens": False, **PLAIN_EXTRAS}
"""What vLLM and SGLang know beside `stop_token_ids`: special tokens stay as they are, and nothing shapes the
distribution but the temperature."""

# Temperature 1, since some servers give log-probabilities after the temperature.
_SCORE = {"max_tokens": 1, "temperature": 1, "seed": 0, "echo": True, "logprobs": 1}

# So many refusals and nothing else: what is wrong is wrong for every request.
_REFUSALS = 8
# OpenAI takes four at most, and the others take as many.
_MOST_STOPS = 4


class Failures:
    """Counts the requests of one stream that a server did not answer, and says at the end what to do about them."""

    def __init__(self, section: ServerSection) -> None:
        self.done = 0
        self._section = section
        self._counts: Counter[str] = Counter()
        self._first: dict[str, Reply] = {}

    def add(self, reply: Reply) -> None:
        """Raises EngineError where the server has refused everything so far."""
        reason = reply.failure or "bad_reply"
        self._counts[reason] += 1
        self._first.setdefault(reason, reply)
        if not self.done and self._counts["refused"] >= _REFUSALS:
            raise EngineError(f"the server refuses every request: {reply.detail}{self.hint(reply)}")

    def raise_any(self, requests: int) -> None:
        """Raises EngineError where any of the stream's `requests` failed."""
        if not self._counts:
            return
        reasons = "; ".join(
            f"{count} {reason}, such as: {self._first[reason].detail}{self.hint(self._first[reason])}"
            for reason, count in self._counts.most_common()
        )
        raise EngineError(
            f"{self._counts.total()} of {requests} requests failed ({reasons}); what came is stored, "
            "and the same command asks only for those"
        )

    def hint(self, reply: Reply) -> str:
        """What to do about a refusal, where its words tell."""
        if reply.failure != "refused":
            return ""
        names = [name for name in ("stop_token_ids", *EXTRAS) if name in reply.detail]
        if self._section.extras and names:
            return f"; it does not know {', '.join(names)}: set the server's `extras: false`"
        if reply.detail.startswith("404"):
            return "; is `model` what the server calls it, and does the url end in /v1?"
        if reply.detail.startswith(("401", "403")):
            return f"; the key is read from the environment variable {self._section.api_key_env}"
        return ""


class OpenAIEngine:
    """Completions from one or several servers with the same model.

    Args:
        section: where they are and how they are asked.
        tokenizer: the model's own; turns stop tokens into text, and counts tokens where a server does not.
    """

    name = "openai"

    def __init__(self, section: ServerSection, tokenizer: Any) -> None:
        self.section = section
        self.tokenizer = tokenizer
        self.client = Client(section)

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Each by itself: what a server puts together is its own affair."""
        return [[index] for index in range(len(requests))]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Raises EngineError at the end where requests failed, at once where every one of the first is refused."""
        if not requests:
            return
        failures = Failures(self.section)
        bodies = [self._completion_body(request) for request in requests]
        for index, reply in self.client.stream("/completions", bodies, _unusable):
            if reply.failure is None and reply.body is not None:
                failures.done += 1
                yield index, self._completion(requests[index], reply.body)
            else:
                failures.add(reply)
        failures.raise_any(len(requests))

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """The shortest goes first and alone, so that a server without log-probabilities is asked only once."""
        whole = [request.prefix_ids + request.target_ids for request in requests]
        order = sorted(range(len(requests)), key=lambda index: len(whole[index]))
        failures = Failures(self.section)
        for indices in (order[:1], order[1:]):
            bodies = [{**self._prompt(whole[index]), **_SCORE} for index in indices]
            for position, reply in self.client.stream("/completions", bodies, _unusable):
                index = indices[position]
                score = self._scored(requests[index], reply)
                if isinstance(score, float):
                    failures.done += 1
                    yield index, score
                elif failures.done or score.failure not in ("refused", "no_logprobs"):
                    failures.add(score)
                else:
                    why = f"{score.detail}{failures.hint(score)}"
                    raise CannotScore(f"the server gives no log-probabilities of a prompt: {why}")
        failures.raise_any(len(requests))

    def close(self) -> None:
        pass

    def _completion_body(self, request: Request) -> dict[str, Any]:
        stops = self._stop_strings(request)[:_MOST_STOPS]
        return {
            **self._prompt(request.prompt_ids),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed & 0x7FFFFFFF,
            **({"stop": stops} if stops else {}),
            **({"stop_token_ids": list(request.stop_ids)} if self.section.extras else {}),
        }

    def _prompt(self, ids: tuple[int, ...]) -> dict[str, Any]:
        extras = EXTRAS if self.section.extras else {}
        return {"model": self.client.model, "prompt": list(ids), **PLAIN_SAMPLING, **extras}

    def _stop_strings(self, request: Request) -> list[str]:
        texts = dict.fromkeys(
            str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in request.stop_ids
        )
        return [text for text in texts if text.strip()]

    def _completion(self, request: Request, body: dict[str, Any]) -> Completion:
        """What came back, as every engine gives it: no stop token in the text, nor in the count of tokens."""
        choice = body["choices"][0]
        text = whole = choice["text"]
        for stop in self._stop_strings(request):
            text = text.partition(stop)[0]
        stopped = text != whole or choice["finish_reason"] == "stop"
        usage = body.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if text != whole or not isinstance(counted, int):
            tokens = len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        else:
            tokens = max(0, counted - 1) if stopped else counted  # servers count the stop token
        return Completion(text, tokens, "stop" if stopped else "length")

    def _scored(self, request: ScoreRequest, reply: Reply) -> float | Reply:
        """The target's log-probability, or a failed reply that says why there is none."""
        if reply.failure is not None or reply.body is None:
            return reply
        logprobs = reply.body["choices"][0].get("logprobs")
        values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not isinstance(values, list):
            return Reply(None, "no_logprobs", "its reply to echo with logprobs holds no token_logprobs")
        start = len(request.prefix_ids)
        end = start + len(request.target_ids)
        scores = values[start:end]
        if len(values) < end or not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
            given = sum(score is not None for score in values)
            return Reply(None, "no_logprobs", f"token_logprobs holds {given} numbers for a prompt of {end} tokens")
        return math.fsum(scores)


def _unusable(body: dict[str, Any]) -> str | None:
    """Why a reply is no completion; None if it is one."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
        return "no_text"
    return None if choice.get("finish_reason") in ("stop", "length") else "unfinished"
