"""The views that training reads: sft, a row a conversation (replay among them), and rl, a row a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.data_builders.quality import holds
from nextturn.data_builders.tasks import Conversation
from nextturn.data_builders.text import states
from nextturn.probe.conversations import Message, check_messages, learned, plain
from nextturn.probe.errors import DataError
from nextturn.probe.files import read_jsonl
from nextturn.probe.grading import boxed, sentences


def sft_row(conversation: Conversation) -> dict[str, Any]:
    """A row of OUT/sft. `problem` is alike for all rows about one problem."""
    task = conversation.task
    row = {
        "id": conversation.id,
        "messages": list(conversation.messages),
        "kind": conversation.kind,
        "source": conversation.source,
        "answer": conversation.answer,
        "problem": task.id.partition("~")[0] if task else conversation.id,
    }
    story = {"story": task.template} if task and task.template else {}
    doubts = {"doubts": list(conversation.doubts)} if conversation.doubts else {}
    return {**row, **story, **doubts, **conversation.row}


def shards(out: Path, view: str) -> list[Path]:
    """The files of one view ("sft", "rl", ...) of a finished build, in order.

    Raises:
        DataError: no build there, an unfinished one, or one without this view.
    """
    if not (out / "manifest.json").is_file():
        state = "is not finished" if (out / "settings.json").is_file() else "is no data build"
        raise DataError(f"{out}: {state} (no manifest.json); build it with: nextturn data RECIPE --out {out}")
    found = sorted((out / view).glob("part-*.jsonl"))
    if not found:
        raise DataError(f"{out}: holds no {view} rows; either its recipe makes none or its conversations gave none")
    return found


def load_sft_rows(out: Path) -> Iterator[dict[str, Any]]:
    """All kept rows of a finished build, in order.

    Raises:
        DataError: no build there, an unfinished one, or a row that is no conversation (file:line).
    """
    for path in shards(out, "sft"):
        yield from read_sft_rows(path)


def read_sft_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of one JSONL file, each with `messages` that end with the assistant; else DataError with file:line."""
    for number, row in read_jsonl(path):
        messages = check_messages(row.get("messages"), f"{path}:{number}")
        if messages[-1]["role"] != "assistant":
            raise DataError(f"{path}:{number}: the conversation ends with the user, wanted an assistant turn last")
        if not any(message["role"] == "assistant" and learned(message) for message in messages):
            raise DataError(f"{path}:{number}: every assistant turn says `loss: false`, so there is nothing to learn")
        yield {**row, "messages": list(messages)}


# --- The rl view: a chat so far, and all that a reward or a simulated user has to know to go on with it.
#
# One row for each assistant turn up to and including the first that boxes an answer; what follows a full answer is talk
# about it, whose result is known. Nothing here is text for a policy but `prompt`.


@dataclass(frozen=True)
class RlRow:
    """One prompt of reinforcement learning.

    Attributes:
        kind: the conversation's kind, such as "underspecified".
        turn: how many assistant turns the prompt holds.
        prompt: ends with a user message.
        problem: the whole problem, which a simulated user knows.
        hidden: texts of the problem that nobody has said yet.
        clause, thing, reveal, short: of what is withheld, as in `data_builders.tasks.Gap`; "" where nothing is.
        ask: the reply of the data, which asks for it.
        persona: of the simulated user, where a model played one.
    """

    id: str
    kind: str
    turn: int
    prompt: tuple[Message, ...]
    answer: str
    problem: str
    solution: str
    hidden: tuple[str, ...] = ()
    clause: str = ""
    thing: str = ""
    reveal: str = ""
    short: str = ""
    ask: str = ""
    persona: str = ""

    @property
    def withholds(self) -> bool:
        """Whether something that the problem needs is still to be said at this point of the chat."""
        return bool(self.hidden or self.clause or self.thing)

    @property
    def telling(self) -> tuple[str, ...]:
        """The sentences of the problem that state what is hidden."""
        return tuple(one for one in sentences(self.problem) if any(states(one, value) for value in self.hidden))

    @property
    def told(self) -> str:
        """What a user tells who is asked for what is withheld: the row's own sentence, or those of the problem."""
        return self.reveal or " ".join(self.telling)


_TEXTS = tuple(field.name for field in dataclasses.fields(RlRow) if field.type == "str")
_NEEDED = ("id", "kind", "answer", "problem")


def rl_rows(conversation: Conversation) -> Iterator[RlRow]:
    """The rows of a conversation; none where its task is not known, as of a replay row, or where it gives no prompts."""
    task = conversation.task
    if task is None or not conversation.prompts:
        return
    for place in range(1, len(conversation.messages), 2):
        turn, before, gap = place // 2, conversation.messages[:place], conversation.gap
        held: dict[str, Any] = {}  # what the user has not told yet
        if gap is not None and place <= conversation.reveal_at:
            stated = any(holds(message["content"], gap.value) for message in before)
            held = {name: getattr(gap, name) for name in ("clause", "thing", "reveal", "short")}
            held["hidden"] = () if stated or not gap.value else (gap.value,)
            held["ask"] = conversation.messages[place]["content"]
        yield RlRow(
            f"{conversation.id}-{turn}", conversation.kind, turn, tuple(map(plain, before)), task.answer, task.question,
            task.boxed_solution or task.solution, persona=conversation.persona, **held,
        )  # fmt: skip
        if boxed(conversation.messages[place]["content"]):
            return


def load_rl_rows(path: Path) -> Iterator[RlRow]:
    """The rows of a finished build's folder, or of a JSONL file with such rows.

    Raises:
        DataError: nothing there, an unfinished build, or a row that is none (file:line).
    """
    seen: set[str] = set()
    for part in shards(path, "rl") if path.is_dir() else [path]:
        for number, row in read_jsonl(part):
            read = _read(row, f"{part}:{number}")
            if read.id in seen:
                raise DataError(f"{part}:{number}: the id {read.id!r} stands twice")
            seen.add(read.id)
            yield read


def _read(row: dict[str, Any], where: str) -> RlRow:
    texts = {name: row.get(name, "") for name in _TEXTS}
    for name, text in texts.items():
        if not isinstance(text, str) or (name in _NEEDED and not text.strip()):
            raise DataError(f"{where}: `{name}` is {_shown(text)}, wanted text")
    turn, hidden = row.get("turn", 0), row.get("hidden", [])
    if not isinstance(turn, int) or isinstance(turn, bool) or turn < 0:
        raise DataError(f"{where}: `turn` is {_shown(turn)}, wanted a whole number, 0 or more")
    if not isinstance(hidden, list) or not all(isinstance(text, str) and text for text in hidden):
        raise DataError(f"{where}: `hidden` is {_shown(hidden)}, wanted a list of texts")
    prompt = check_messages(row.get("prompt"), where)
    if prompt[-1]["role"] != "user":
        raise DataError(f"{where}: the prompt ends with the assistant, wanted a user message last")
    read = RlRow(prompt=tuple(map(plain, prompt)), turn=turn, hidden=tuple(hidden), **texts)
    if read.withholds and not read.told:
        raise DataError(
            f"{where}: `hidden`, `clause` or `thing` says that something is withheld, and nothing tells it: wanted `reveal`, a "
            "sentence of the user, or in `hidden` a text that stands in `problem`"
        )
    return read


def _shown(value: Any) -> str:
    return repr(value)[:60] if value != "" else "missing or empty"
