"""Functions that the reward tests name as custom parts; a worker imports this module, so it imports next to nothing."""

from __future__ import annotations

import os
import sys
from typing import Any


def first_reply(sample: Any) -> str:
    return str(sample.conversations[0][sample.start]["content"])


def length(sample: Any) -> float:
    return min(1.0, len(first_reply(sample)) / 100)


def misbehaves(sample: Any) -> float | None:
    """Does what the reply says."""
    said = first_reply(sample)
    if said == "hang":
        while True:
            pass
    if said == "raise":
        raise KeyError("no such thing")
    if said == "die":
        os._exit(3)
    if said == "leave":
        sys.exit("enough")
    if said == "none":
        return None
    if said == "nan":
        return float("nan")
    if said == "text":
        return "0.5"  # type: ignore[return-value]
    return 0.5


def of_library(sample: Any) -> Any:
    """A number of numpy or torch, by what the reply says."""
    import numpy as np
    import torch

    made: dict[str, Any] = {
        "float32": np.float32(0.25), "int64": np.int64(1), "bool": np.True_, "array": np.array([0.25]),
        "tensor": torch.tensor(0.25, dtype=torch.bfloat16, requires_grad=True), "nan": np.float32("nan"), "two": np.ones(2),
    }  # fmt: skip
    return made[first_reply(sample)]


def arrays(completions: list[list[dict[str, str]]], **_: object) -> Any:
    """Such numbers in trl's form: one array or tensor for all completions."""
    import numpy as np
    import torch

    lengths = [len(said[0]["content"]) for said in completions]
    return torch.tensor(lengths) if lengths[0] > 4 else np.array(lengths, dtype=np.float16)


def not_one_number(completions: list[list[dict[str, str]]], **_: object) -> Any:
    """A text, or two numbers for one completion."""
    return "0.5" if completions[0][0]["content"] == "text" else [0.5, 0.5]


def is_light(sample: Any) -> float:
    """1 where the worker holds none of what makes a training process heavy."""
    return float(not {"torch", "transformers", "trl"} & set(sys.modules))


def worker_pid(sample: Any) -> float:
    return float(os.getpid())


def names_product(
    prompts: list[object], completions: list[list[dict[str, str]]], product: list[str], **_: object
) -> list[float]:
    """A reward in trl's form: the reply names the product of its row."""
    return [float(name in said[0]["content"]) for said, name in zip(completions, product, strict=True)]


def says_sorry(completions: list[list[dict[str, str]]], answer: list[str], **_: object) -> list[float]:
    """Another one, which reads the answer."""
    return [
        float("Sorry" in said[0]["content"] and right == "yes") for said, right in zip(completions, answer, strict=True)
    ]


def is_paris(reply: str, answer: str) -> bool:
    """A grader of one's own."""
    return answer == "Paris" and "capital" in reply


def raises(reply: str, answer: str) -> bool:
    """A grader that fails."""
    return len(reply) == 1 // 0
