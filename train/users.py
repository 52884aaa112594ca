"""Compare simulated users by the same measures: user models, prompted models, the scripted user, and the data's own users.

    nextturn users runs/user_smol smollm2-135m --data held_out.jsonl

Wherever the assistant has spoken in a conversation of the data, each user writes the next turn or ends the conversation.

perplexity        of the data's user turns for the model, with the intents that the data state; the mean over tokens, so
                  compare models of one tokenizer only
voice             percent of the written turns that rules take for a user's; cut off or unusable turns count as no user's
distinct 1, 2     share of different words, and of different pairs of words; it falls as a user writes more
words             mean length of a turn
ends over, open   percent of points at which the user ends the conversation: where the data's user ended it (over), and where
                  the data's user went on (open)
reveals asked     percent of withheld facts that the user states where the data's user does, asked by the assistant
reveals unasked   the same after a reply that asks nothing, in place of the assistant's first reply

A row of the data states a withheld fact in `reveal`, a sentence, and its name in `thing`. The fact is revealed where all of its
numbers are stated; facts without a number, and facts that the data's user never states, do not count.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from nextturn.data_builders.dialogue.checks import fact_values, values
from nextturn.data_builders.dialogue.replies import unfit_user_turn
from nextturn.data_builders.sections import SimulatorSection, Written
from nextturn.data_builders.simulators import open_simulator
from nextturn.data_builders.written import WISHES, written
from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.files import write_json, write_jsonl
from nextturn.probe.command.terminal import aligned, collected, printable
from nextturn.probe.data.messages import assistant, plain, row_id
from nextturn.probe.data.tables import located
from nextturn.probe.engines.ask import EngineModel
from nextturn.probe.engines.base import ScoreRequest, item_seed
from nextturn.probe.judges.rules import RulesJudge
from nextturn.probe.judges.verdicts import ROLE_CONSISTENT, Case
from nextturn.probe.models.user_model import user_model_info
from nextturn.probe.questions.simulation import Fact, PromptRow, UserRequest, UserTurn
from nextturn.probe.report.comparison import plain as in_json
from nextturn.probe.stats import NOTHING, Estimate, clustered_rate
from nextturn.probe.text.words import ngrams, words

Row = dict[str, Any]
NOT_ASKING = assistant("Thank you, let me look at this.")


@dataclass(frozen=True)
class Point:
    """A point of a conversation where the user is next.

    Attributes:
        real: What the user of the data did; None after `NOT_ASKING`, where nobody knows.
        fact: The numbers of the withheld fact where the user of the data states it, and after `NOT_ASKING`; else empty.
    """

    request: UserRequest
    real: UserTurn | None
    fact: frozenset[float] = frozenset()


def points_of(row: Row, seed: int) -> Iterator[Point]:
    """Yield the points of a conversation, the one after `NOT_ASKING` last, if a fact is withheld and later revealed."""
    messages = tuple(plain(message) for message in row["messages"] if message["role"] != "system")
    texts = [message["content"] for message in messages]
    turns = [at for at in range(2, len(texts)) if messages[at]["role"] == "user"]
    reveal, thing, answer = (str(row.get(key) or "") for key in ("reveal", "thing", "answer"))
    fact = fact_values(reveal) - values(texts[0])
    revealed = next((at for at in turns if fact and fact <= values(texts[at])), 0)
    known = PromptRow(
        row["id"], f"{texts[0]}\n{reveal}".strip(), answer, wish=WISHES.get(row.get("kind", ""), "result"),
        hidden=(reveal,) if reveal else (), fact=Fact(ask=texts[revealed - 1] if revealed else "", reveal=reveal, thing=thing),
    )  # fmt: skip
    user_seed = item_seed(seed, row["id"])
    for at in [*turns, len(texts)]:
        real = UserTurn(texts[at]) if at < len(texts) else UserTurn(ended=True)
        yield Point(UserRequest(known, messages[:at], user_seed), real, fact if at == revealed else frozenset())
    if revealed:
        yield Point(UserRequest(known, (messages[0], NOT_ASKING), user_seed), None, fact)


def figures(points: Sequence[Point], turns: Sequence[UserTurn | None]) -> dict[str, Estimate]:
    """Return the figures of the turns that a user wrote at these points, without its perplexity. None: not known."""
    pairs = [(point, turn) for point, turn in zip(points, turns, strict=True) if turn]
    spoken = [(point, turn) for point, turn in pairs if point.real and not turn.ended]
    texts = [tuple(words(turn.text)) for _, turn in spoken if not turn.failure]
    facts = [(point, point.fact <= values(turn.text)) for point, turn in pairs if point.fact]
    return {
        "perplexity": NOTHING,
        "voice": _rate((point, _in_voice(point, turn)) for point, turn in spoken),
        "distinct_1": _distinct(texts, 1),
        "distinct_2": _distinct(texts, 2),
        "words": Estimate(fmean(map(len, texts)), None, len(texts)) if texts else NOTHING,
        "ends_over": _rate((point, turn.ended) for point, turn in pairs if point.real and point.real.ended),
        "ends_open": _rate((point, turn.ended) for point, turn in pairs if point.real and not point.real.ended),
        "reveals_asked": _rate(pair for pair in facts if pair[0].real),
        "reveals_unasked": _rate(pair for pair in facts if not pair[0].real),
    }


def _rate(pairs: Iterable[tuple[Point, bool | None]]) -> Estimate:
    known = [(value, point.request.row.id) for point, value in pairs if value is not None]
    return clustered_rate([value for value, _ in known], [name for _, name in known])


def _in_voice(point: Point, turn: UserTurn) -> bool | None:
    """Return whether a turn is in a user's voice; None: the rules cannot say, as in other languages than English."""
    if turn.failure or unfit_user_turn(turn.text, point.request.messages):
        return False
    label = RulesJudge().verdict(Case(point.request.messages, turn.text)).label
    return None if label is None else label in ROLE_CONSISTENT


def _distinct(texts: Sequence[tuple[str, ...]], size: int) -> Estimate:
    runs = [run for text in texts for run in ngrams(text, size)]
    return Estimate(len(set(runs)) / len(runs), None, len(runs)) if runs else NOTHING


def perplexity(model: EngineModel, rows: Iterable[Row], intents: bool) -> Estimate:
    """Return the perplexity of the tokens that have loss with `data.loss_on: user`, and their number.

    Args:
        intents: Whether the model sees the intents that rows state.
    """
    from nextturn.train.encoding import user_view

    requests = []
    for row in rows:
        view = user_view(row if intents else {**row, "intent": None})
        for trained in model.chat.training_rows(view, "user"):
            ids, mask = tuple(trained.input_ids), [0, *trained.loss_mask, 0]
            edges = [at for at in range(len(mask) - 1) if mask[at] != mask[at + 1]]
            requests += [ScoreRequest(ids[:at], ids[at:end]) for at, end in zip(edges[::2], edges[1::2], strict=True)]
    log_p = sum(collected(model.engine.score(requests), len(requests), "perplexity", unit=" turns"))
    tokens = sum(len(request.target_ids) for request in requests)
    return Estimate(math.exp(-log_p / tokens), None, tokens)


def table(users: Mapping[str, Mapping[str, Estimate]]) -> str:
    """Return the table that the command prints, with a row for each user."""
    rows = [[printable(name, 40), *map(_cell, user.values())] for name, user in users.items()]
    rows.insert(0, ["user", *(key.replace("_", " ") for key in users["real"])])
    return "\n".join([*aligned(rows), "percent [95% interval] of n; nextturn users --help explains the columns"])


def _cell(figure: Estimate) -> str:
    if figure.value is None or figure.ci95 is None:
        return "-" if figure.value is None else f"{figure.value:.2f}"
    low, high = figure.ci95
    return f"{100 * figure.value:.0f} [{100 * low:.0f}, {100 * high:.0f}] of {figure.n}"


def read_data(path: str | None) -> list[Row]:
    """Return the conversations of a path, or the written ones with what they withhold."""
    from nextturn.data_builders.rows import load_sft_rows, sft_row

    if path is not None:
        rows = enumerate(load_sft_rows(located(path, "--data")), start=1)
        return [{**row, "id": row_id(row, number)} for number, row in rows]
    # With the seed of recipes/written.yaml, its `source.n` leaves out the last conversations.
    return [
        sft_row(talk) | {"reveal": talk.fact.reveal, "thing": talk.fact.thing} for talk in written(Written(), seed=7)
    ]


def simulator_section(name: str, dtype: Any = "auto") -> SimulatorSection:
    """Return the simulator of an argument: a class, the folder of a user model, or a chat model that is prompted once."""
    if ":" in name:
        return SimulatorSection(engine=name, tries=1)
    engine = "adapter" if user_model_info(Path(name)) else "hf"
    return SimulatorSection(engine=engine, model=name, tries=1, max_tokens=128, dtype=dtype)


def main(argv: Sequence[str]) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="nextturn users", description=__doc__, formatter_class=form)
    models = "folder of a user model, a chat model that is prompted as a user, or MODULE:CLASS of your own"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=models)
    parser.add_argument("--data", metavar="PATH", help="conversations that SFT can read (default: the written ones)")
    parser.add_argument("--n", type=int, default=100, help="take the last N conversations (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of what users write (default: 0)")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="data type of weights (default: their own)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write users.json and turns.jsonl here, or resume")
    parser.add_argument("--dry-run", action="store_true", help="check the users and the data, run no model")
    options = parser.parse_args(argv)
    sections = {name: simulator_section(name, options.dtype) for name in options.models} | {
        "scripted": SimulatorSection()
    }
    rows = read_data(options.data)[-options.n :]
    points = [point for row in rows for point in points_of(row, options.seed)]
    if options.n < 1 or not points:
        raise BadInput(f"--n {options.n} of {options.data or 'the written ones'}: expected at least 1 conversation")
    for name, section in sections.items():  # before any model runs
        with open_simulator(section, options.seed, name):
            pass
    print(f"{len(rows)} {printable(options.data or 'written')} conversations, {len(points)} turns of each user")
    if options.data is None:
        print("recipes/user_*.yaml train on all written conversations: compare user models on others (--data)")
    if options.dry_run:
        return
    requests = [point.request for point in points]
    users, turns = dict[str, dict[str, Estimate]](), dict[str, Sequence[UserTurn | None]]()
    for name, section in sections.items():
        with open_simulator(section, options.seed, name, options.out and options.out / "stored") as simulator:
            turns[name] = simulator.turns(requests)
            users[name] = figures(points, turns[name])
            played = getattr(simulator.own, "others", None) or simulator.own
            model = getattr(played, "model", None)
            if isinstance(model, EngineModel):
                users[name]["perplexity"] = perplexity(model, rows, getattr(played, "intents", True))
    turns["real"] = [point.real for point in points]
    users["real"] = figures(points, turns["real"])
    print(table(users))
    if options.out:
        lines = (
            {"user": name, "id": request.row.id, "after": request.messages[-1]["content"], **vars(turn)}
            for name, made in turns.items() for request, turn in zip(requests, made, strict=True) if turn
        )  # fmt: skip
        write_jsonl(options.out / "turns.jsonl", lines)
        settings = {"schema": 1, "data": options.data, "conversations": len(rows), "seed": options.seed}
        write_json(options.out / "users.json", {**settings, "users": in_json(users)})
        print(options.out / "users.json")
