"""Does a model know, before its first word, that something is missing? What its hidden states tell, layer by layer.

    python recipes/results/knows.py MODEL... [--dtype float32] [--out knows.json]

A ridge classifier tries to tell openings that lack something from complete ones: by their characters alone (as the data
card's giveaway does), and by the hidden state of the last prompt token, where the reply begins. Openings are those of the
written conversations and of the written pairs; all forms of one problem are on the same side of the five folds. The layer is
chosen on the conversations, the figures are of the 54 pairs; the threshold of what is found is set on their complete halves.
That a linear read-out finds nothing is no proof that training cannot: it says how far there is to go.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_builders.surface import Opening, alike, held_out_scores
from data_builders.written import FILE
from probe.errors import run_command
from probe.files import read_jsonl, write_json
from probe.sets import PACKAGED
from probe.stats import auc, wilson

FALSE_ALARMS = 0.05  # answer_when_complete is to stay at 0.95


@dataclass(frozen=True)
class Told:
    """How well the two are told apart. `by`: "characters" or "layer N".

    Attributes:
        conversations, pairs: AUC of the openings of either source, problems resampled: (value, lower, upper).
        within: share of the pairs whose incomplete form has the higher score.
        found: share of the incomplete forms that are found at FALSE_ALARMS among the complete ones: (value, lower, upper).
    """

    by: str
    conversations: tuple[float, float, float]
    pairs: tuple[float, float, float]
    within: float
    found: tuple[float, float, float]


def openings() -> tuple[list[Opening], int]:
    """(first messages, those of the pairs first, how many of them are the pairs')."""
    found = [
        Opening(row[form], form == "underspecified", row["id"])
        for _, row in read_jsonl(PACKAGED["written_pairs"])
        for form in ("complete", "underspecified")
    ]
    pairs = len(found)
    for _, row in read_jsonl(FILE):
        if row["kind"] in ("complete", "twin", "underspecified"):
            lacks, problem = row["kind"] == "underspecified", row["twin_of"] or row["id"]
            found.append(Opening(row["messages"][0]["content"], lacks, problem))
    return found, pairs


def states(model: str, dtype: str, texts: Sequence[str]) -> NDArray[np.float32]:
    """The hidden state of the last prompt token after the embedding and after each layer: [layers, openings, width]."""
    import torch
    from tqdm import tqdm

    from probe.chat import Chat
    from probe.models import load_model, load_tokenizer, resolve

    folder = resolve(model)
    chat, policy = Chat(load_tokenizer(folder)), load_model(folder, dtype)
    made = []
    with torch.inference_mode():
        for text in tqdm(texts, unit=" openings", disable=None):
            ids = torch.tensor([chat.prompt_ids([{"role": "user", "content": text}])], device=policy.device)
            hidden = policy(input_ids=ids, output_hidden_states=True).hidden_states
            made.append(np.stack([layer[0, -1].float().cpu().numpy() for layer in hidden]))
    return np.stack(made, axis=1)


def cosines(layer: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of each two states, each unit scaled to mean 0 and variance 1 first: [openings, openings]."""
    scaled = (layer - layer.mean(axis=0)) / (layer.std(axis=0) + 1e-6)
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
    return (scaled @ scaled.T).astype(np.float64)


def told(by: str, likeness: NDArray[np.float64], given: Sequence[Opening], pairs: int) -> Told:
    lacks, problems = [one.lacks for one in given], [one.problem for one in given]
    scores = held_out_scores(likeness, lacks, problems)

    def area(part: slice) -> tuple[float, float, float]:
        found = auc(scores[part], lacks[part], problems[part])
        assert found.value is not None and found.ci95 is not None
        return (found.value, *found.ci95)

    whole, cut = np.array(scores[:pairs:2]), np.array(scores[1:pairs:2])
    alarms = np.sort(whole)[::-1][int(FALSE_ALARMS * len(whole))]
    found = int((cut > alarms).sum())
    share = wilson(found, len(cut))
    assert share.value is not None and share.ci95 is not None
    return Told(
        by, area(slice(pairs, None)), area(slice(pairs)), float((cut > whole).mean()), (share.value, *share.ci95)
    )


def by_layer(model: str, dtype: str, given: Sequence[Opening], pairs: int) -> Iterator[Told]:
    # Before the first layer the last token is the same in every prompt.
    for number, layer in enumerate(states(model, dtype, [one.text for one in given])[1:], 1):
        yield told(f"layer {number}", cosines(layer), given, pairs)


def line(name: str, one: Told) -> str:
    area, found = (f"{value:.2f} [{low:.2f}, {high:.2f}]" for value, low, high in (one.pairs, one.found))
    return f"{name:<40} {one.by:<12} {one.conversations[0]:.2f}  {area}  {one.within:.2f}  {found}"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="hub ids, folders or runs")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, help="a JSON file of all layers")
    args = parser.parse_args(argv)

    given, pairs = openings()
    print(
        f"{len(given)} openings, {pairs} of them in pairs. AUC of conversations and of pairs, share of pairs in the right"
    )
    print(f"order, share of what lacks something that is found at {FALSE_ALARMS:.0%} false alarms:")
    characters = [told("characters", alike(given, longest), given, pairs) for longest in (1, 3)]
    best = max(characters, key=lambda one: one.conversations)
    print(line("-", best))
    every: dict[str, Any] = {"characters": asdict(best)}
    for model in args.models:
        layers = list(by_layer(model, args.dtype, given, pairs))
        print(line(model, max(layers, key=lambda one: one.conversations)))
        every[model] = [asdict(one) for one in layers]
    if args.out:
        write_json(args.out, every)
        print(f"all layers: {args.out}")


if __name__ == "__main__":
    sys.exit(run_command(main))
