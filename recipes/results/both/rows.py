"""Write the training rows of an arm of both.sh.

    python recipes/results/both/rows.py TRAIN.jsonl OUT.jsonl [--own FILE] [--pieces] [--replies varied] [--loss one] [--after 0.5]

TRAIN.jsonl is GSM8K's training split, or MATH's with `--own own_math.jsonl.gz`. `own.jsonl.gz` beside this file holds the base model's own
right solutions with the ids of their questions, so the rows are the same on every machine and no model takes part. The other rows are 160 written conversations
without the kind `underspecified`, whose solutions carry no loss. `--pieces` adds both kinds once more, told piece by piece; the other
options are `sharded_replies`, `sharded_loss` and `sharded_after` of a data recipe.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nextturn.data_builders.rows import sft_row
from nextturn.data_builders.sections import DataRecipe, Written
from nextturn.data_builders.sharded import Teller
from nextturn.data_builders.tasks import Conversation
from nextturn.data_builders.written import only_talk, written
from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.data.messages import Message, assistant, learned, user
from nextturn.probe.questions.sets import read_problems
from nextturn.probe.text.grading import boxed

OWN = Path(__file__).with_name("own.jsonl.gz")
KINDS = ["complete", "twin", "wrong_start", "doubt", "slip", "hint", "chat"]
SEED = 7


def conversations(train: Path, own: Path) -> Iterator[Conversation]:
    """Yield the own solutions as plain questions with their answer, then the written conversations."""
    with gzip.open(own, "rt", encoding="utf-8") as lines:
        solved = [json.loads(line) for line in lines]
    source = solved[0]["id"].partition("-")[0]
    problems = {problem.id: problem for problem in read_problems(train, source)}
    for row in solved:
        problem = problems[row["id"]]
        messages = (user(problem.question), assistant(row["solution"]))
        yield Conversation(f"{problem.id}-own", "complete", messages, source, problem.answer)
    yield from written(Written(n=160, kinds=KINDS), SEED)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="GSM8K's training split, or MATH's")
    parser.add_argument("out", type=Path)
    parser.add_argument("--own", type=Path, default=OWN, help="the own solutions")
    parser.add_argument("--pieces", action="store_true", help="also tell the problems piece by piece")
    parser.add_argument("--replies", choices=["plain", "varied"], default="plain")
    parser.add_argument("--loss", choices=["all", "one", "none"], default="all")
    parser.add_argument("--after", type=float, default=0.0)
    args = parser.parse_args(argv)

    settings = {"sharded_replies": args.replies, "sharded_loss": args.loss, "sharded_after": args.after}
    source, output = {"kind": "written"}, {"path": str(args.out)}
    recipe = DataRecipe.model_validate(
        {"source": source, "output": output, "seed": SEED, "sharded": float(args.pieces), **settings}
    )
    teller, rows = Teller(recipe), []
    for conversation in conversations(args.train, args.own):
        for told in (conversation, teller.sharded(conversation)):
            row = sft_row(told) if told is not None else {}
            if row.get("source") == "written":
                row["messages"] = without_solutions(row["messages"])
            if any(message["role"] == "assistant" and learned(message) for message in row.get("messages", ())):
                teller.remember(row)
                rows.append(row)
    write_jsonl(args.out, rows)
    print(f"{args.out}: {len(rows)} rows, {sum(row['kind'] == 'sharded' for row in rows)} of them in pieces")


def without_solutions(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a written conversation without loss on its solutions; a row of solutions alone keeps its loss.

    A row in pieces of the arm without loss on replies has none left then, and is left out.
    """
    if not any(message.get("loss") is False for message in messages):
        return only_talk(messages)
    return [{**message, "loss": False} if boxed(message["content"]) else message for message in messages]


if __name__ == "__main__":
    sys.exit(run_command(main))
