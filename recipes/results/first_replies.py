"""Write first replies to written first messages, half of which ask: the data of the run `sft-asks`.

    python recipes/results/first_replies.py MODEL OUT.jsonl [--engine vllm] [--dtype float32]

If the first message lacks something, the reply is the written question for it. If it is complete, the reply is MODEL's own
greedy answer, right or wrong, so that training changes only when the model asks. An own answer is left out if it does not
end within the limit, or if it asks.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from nextturn.data_builders.sections import Written
from nextturn.data_builders.written import written
from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.command.sections import EngineSection, VllmSection
from nextturn.probe.data.messages import Message
from nextturn.probe.engines import open_engine
from nextturn.probe.engines.base import Request, collect
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.text.chat import Chat
from nextturn.probe.text.grading import asks
from nextturn.probe.text.words import rough_sentences

LIMIT = 300  # tokens
SPARE = 14  # more own answers than questions, since some are left out
Opening = tuple[str, tuple[Message, ...]]  # (id of the conversation, messages)


def openings(seed: int) -> tuple[list[Opening], list[Opening]]:
    """Return (first messages with their written question, complete first messages: all twins of the former, then others)."""
    conversations = written(Written(), seed)
    questions = [(row.id, tuple(row.messages[:2])) for row in conversations if row.kind == "underspecified"]
    twins, complete = ([row for row in conversations if row.kind == kind] for kind in ("twin", "complete"))
    random.Random(f"complete:{seed}").shuffle(complete)
    chosen = [*twins, *complete][: len(questions) + SPARE]
    return questions, [(row.id, tuple(row.messages[:1])) for row in chosen]


def answers_at_once(reply: str) -> bool:
    return bool(reply.strip()) and not asks(reply) and not rough_sentences(reply)[-1].endswith("?")


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint, a folder or a hub id")
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", choices=["hf", "vllm"], default="hf")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args(argv)

    questions, complete = openings(args.seed)
    folder = resolve(args.model)
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer)
    vllm = VllmSection(enforce_eager=True, max_model_len=2048)
    settings = EngineSection(engine=args.engine, dtype=args.dtype, vllm=vllm)
    with closing(open_engine(folder, tokenizer, settings)) as engine:
        replies = collect(
            engine, [Request(chat.prompt_ids(messages), LIMIT, chat.turn_end_ids) for _, messages in complete]
        )
    own = [
        (name, (*messages, {"role": "assistant", "content": reply.text.strip()}))
        for (name, messages), reply in zip(complete, replies, strict=True)
        if reply.finish == "stop" and answers_at_once(reply.text)
    ]
    rows = [{"id": name, "messages": list(messages)} for name, messages in [*questions, *own]]
    random.Random(f"rows:{args.seed}").shuffle(rows)
    write_jsonl(args.out, rows)
    print(f"{args.out}: {len(questions)} questions for incomplete problems, {len(own)} own answers to complete ones")


if __name__ == "__main__":
    sys.exit(run_command(main))
