"""The preference view: a conversation so far and two replies, of which one is to be preferred.

The pairs are minimal: where a given is withheld, asking for it stands over a guess; where the same problem is complete, its
right answer stands over asking. The side to prefer is the data's own. The other one is what a model really says, best the one
that will be trained; without a model it comes from the other conversations about the same problem: the solution that has what
is withheld, and the question that asks for what is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_builders.dialogue.roles import Meter, RoleModel, open_roles
from data_builders.dialogue.score import Parsed, Reply, read_assistant
from data_builders.dialogue.settings import RoleSection, check_role, role_shaping
from probe.conversations import Message
from probe.engines.base import item_seed
from probe.errors import RecipeError
from probe.files import write_jsonl
from probe.grading import boxed, outcome, same_answer, strict_answer
from probe.recipe import section

VIEW = "preference"
# Questions that a model in this process gets together: full batches without holding a whole build.
_TOGETHER = 256


@section
class Preferences:
    """Whether pairs are made, and whose replies are the ones to leave."""

    model: RoleSection | None = None
    """Says the replies that are not preferred; the model to be trained is meant. Left out: the conversations' own."""
    tries: int = 4
    """How often it is asked at most for one reply of the unwanted kind; where none comes there is no pair."""
    max_cost: float | None = None

    def check(self) -> None:
        """Raises RecipeError where the settings cannot be used."""
        if self.tries < 1:
            raise RecipeError(f"preferences.tries: given {self.tries}, wanted 1 or more")
        if self.model is not None:
            check_role("preferences.model", self.model)

    def shaping(self) -> dict[str, Any]:
        """The settings that shape what is written."""
        return {"model": role_shaping(self.model), "tries": self.tries} if self.model else {"model": None}


@dataclass(frozen=True)
class Wanted:
    """A pair to be: the conversation so far and the reply to prefer.

    Attributes:
        kind: "ask" where something is missing, else "answer".
        other: the reply to leave, from the conversations; "" where they have none.
    """

    id: str
    kind: str
    prompt: tuple[Message, ...]
    chosen: str
    other: str


def wanted_pairs(out: Path) -> list[Wanted]:
    """One for each conversation of a build (its shards are all written) whose first reply is as it should be, in order."""
    from data_builders.rows import RlRow, load_rl_rows, read_sft_rows  # numpy, which a recipe can be read without

    said = {
        row["id"]: row["messages"] for path in sorted((out / "sft").glob("part-*.jsonl")) for row in read_sft_rows(path)
    }
    found: list[tuple[RlRow, Wanted]] = []
    for path in sorted((out / "rl").glob("part-*.jsonl")):
        for row in load_rl_rows(path):
            messages = said[row.id.rpartition("-")[0]]
            reply = messages[1]["content"]
            if row.turn:
                continue
            if row.clause and outcome(reply, truncated=False) == "asked":
                later = (message["content"] for message in messages[3::2] if boxed(message["content"]))
                found.append((row, Wanted(row.id, "ask", row.prompt, reply, next(later, ""))))
            elif not row.clause and _right(reply, row.answer):
                found.append((row, Wanted(row.id, "answer", row.prompt, reply, "")))
    # What is said of the same problem where it is the other way round; for want of it, a solution has the one after the reveal.
    first = {(row.problem, pair.kind): pair.chosen for row, pair in reversed(found)}
    kinds = {"ask": "answer", "answer": "ask"}
    return [replace(pair, other=first.get((row.problem, kinds[pair.kind]), pair.other)) for row, pair in found]


def _right(text: str, answer: str) -> bool:
    marked = strict_answer(text)
    return marked is not None and same_answer(marked, answer)


def unwanted(pair: Wanted, reply: Reply) -> Parsed:
    """A model's reply, unusable where it does what is wanted anyway."""
    parsed = read_assistant(reply)
    does = outcome(parsed.text, reply.cut)
    wrong = "answered" if pair.kind == "ask" else "asked"
    return replace(parsed, unusable=parsed.unusable or ("" if does == wrong else does))


def write_pairs(section: Preferences, out: Path, work: Path, seed: int) -> dict[str, int]:
    """Writes the view and gives counts for the manifest: pairs by kind, and those without a reply to leave.

    `work` keeps a model's replies, so that a build that was killed asks for none twice.

    Raises:
        EngineError: a server cannot be reached, or answers nothing but failures.
        NextturnError: `preferences.max_cost` is used up.
    """
    pairs = wanted_pairs(out)
    others = (
        {pair.id: pair.other for pair in pairs}
        if section.model is None
        else _asked(section, section.model, pairs, work, seed)
    )
    rows, counts = [], Counter[str]()
    for pair in pairs:
        rejected = others[pair.id].strip()
        if not rejected or rejected == pair.chosen.strip():
            counts[f"{pair.kind}_without_other"] += 1
            continue
        counts[pair.kind] += 1
        rows.append(
            {
                "id": pair.id,
                "kind": pair.kind,
                "prompt": list(pair.prompt),
                "chosen": [{"role": "assistant", "content": pair.chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
            }
        )
    write_jsonl(out / VIEW / "part-00000.jsonl", rows)
    return dict(sorted(counts.items()))


def _asked(section: Preferences, model: RoleSection, pairs: Iterable[Wanted], work: Path, seed: int) -> dict[str, str]:
    """What the model says to each opening that is of the unwanted kind, by the pair's id; "" where it never did."""
    from tqdm import tqdm

    meter = Meter({"replay": model.price}, section.max_cost, "preferences.max_cost")
    found: dict[str, str] = {}

    async def one(pair: Wanted, role: RoleModel) -> None:
        came = await role.ask(
            pair.prompt, lambda reply: unwanted(pair, reply), lambda attempt: item_seed(seed, pair.id, VIEW, attempt),
            section.tries,
        )  # fmt: skip
        found[pair.id] = came.parsed.text if came.parsed is not None else ""
        bar.update()

    every = list(pairs)
    with (
        tqdm(total=len(every), desc="preferences", unit=" pairs", disable=None) as bar,
        closing(open_roles({"replay": model}, seed, meter.heard)) as roles,
    ):
        for start in range(0, len(every), _TOGETHER):
            stretch = every[start : start + _TOGETHER]
            roles.run(
                (one(pair, roles["replay"]) for pair in stretch),
                _TOGETHER,
                folder=work / f"part-{start // _TOGETHER:05}",
            )
    return found
