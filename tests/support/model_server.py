"""A loopback server that holds a real (tiny) model: /completions and /models as vLLM answers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nextturn.probe.engines.base import Request, collect
from nextturn.probe.engines.hf import HfEngine
from support.loopback import Seen, completion_reply, models_reply

Handler = Callable[[Seen], Any]


def model_server(model: Any, tokenizer: Any, name: str = "tiny") -> dict[str, Handler]:
    """Handlers for `Loopback`: stop tokens counted but not shown, the prompt echoed with log-probabilities."""

    def completions(seen: Seen) -> dict[str, Any]:
        body, prompt = seen.body, seen.body["prompt"]
        ids = tuple(tokenizer(prompt, add_special_tokens=False)["input_ids"] if isinstance(prompt, str) else prompt)
        stops = {*body.get("stop_token_ids", ()), *(tokenizer(stop)["input_ids"][0] for stop in body.get("stop", ()))}
        request = Request(ids, body["max_tokens"], tuple(stops), body["temperature"], body["seed"])
        (made,) = collect(HfEngine(model, tokenizer), [request])
        reply = completion_reply(made.text, made.finish, made.tokens + (made.finish == "stop"))
        if body.get("echo"):
            pieces = [tokenizer.decode([token]) for token in ids]
            offsets = [len("".join(pieces[:count])) for count in range(len(ids) + 1)]
            values = [None, *token_logprobs(model, ids), -1.0]
            reply["choices"][0]["logprobs"] = {"token_logprobs": values, "text_offset": offsets}
        return reply

    return {"/completions": completions, "/models": lambda seen: models_reply(name)}


def token_logprobs(model: Any, ids: tuple[int, ...]) -> list[float]:
    """log p of every token but the first."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
