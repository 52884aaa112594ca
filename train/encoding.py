"""Turn conversations, pairs and prompts into training rows: token ids, with loss exactly where the recipe asks for it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from nextturn.data_builders.duplicates import KnownQuestions, meant
from nextturn.data_builders.rows import first_faults, load_rl_rows, load_sft_rows, view_rows
from nextturn.data_builders.sections import load_data_recipe
from nextturn.probe.command.errors import DataError, TemplateError
from nextturn.probe.command.terminal import say_once
from nextturn.probe.data.messages import (
    THOUGHT_FIELDS,
    asked_in,
    check_text,
    check_with_columns,
    has_thoughts,
    learned,
    refuse_marks,
    renamed,
)
from nextturn.probe.data.tables import located
from nextturn.probe.questions.simulation import PromptRow
from nextturn.probe.text.chat import Chat, LossOn, Message
from nextturn.train.rewards import check_columns
from nextturn.train.sections import DataSection, GrpoRecipe, RolloutSection, TrainingData

IGNORED = -100  # the label that torch's cross-entropy ignores


@dataclass(frozen=True)
class RowCounts:
    """Numbers of the conversations and of their rows, tokens, tokens with loss, and rows left out as too long.

    Attributes:
        intents: Conversations that begin with the user's intent (`loss_on: user`).
        skipped: Rows that are no conversations and were left out (`data.on_bad_row: skip`).
        unthinking: Conversations with an answer without thoughts, for a template that writes thoughts before answers.
        doubled: Conversations with thoughts after a prompt that ends in an empty think block.
        spelled: Conversations whose texts spell special tokens.
    """

    conversations: int
    rows: int
    tokens: int
    loss_tokens: int
    longest: int
    too_long: int
    intents: int = 0
    skipped: int = 0
    unthinking: int = 0
    doubled: int = 0
    spelled: int = 0

    def summary(self, loss_on: str) -> str:
        """Return the counts as text for a model card."""
        skipped = f" and {self.skipped} because they are no conversations" if self.skipped else ""
        return (
            f"on {self.conversations:,} conversations:\n{self.rows:,} rows, {self.tokens:,} tokens of which "
            f"{self.loss_tokens:,} carry loss ({loss_on} turns), {self.too_long} rows left out as too long{skipped}."
        )


def data_path(path: str | None, recipe: str | None) -> Path:
    """Return the folder or file of the data; a data set of the hub is fetched, and the data of a recipe are built first."""
    if path is not None:
        return located(path, "data.path")
    from nextturn.data_builders.build import build

    return build(load_data_recipe(Path(recipe or "")))


def read_conversations(path: Path, section: DataSection, skipped: list[str]) -> Iterator[tuple[Message, ...]]:
    """Yield the conversations of a builder's folder (its files in sft/), or of a file in any form of `probe.data.tables`.

    With `loss_on: user` they are in the user's view, see `user_view`.

    Args:
        skipped: Gets the faults of rows that are left out because of `data.on_bad_row: skip`.

    Raises:
        DataError: There is no file, the build is not finished, or rows are no conversations.
    """
    unread = set[str]()
    for row in load_sft_rows(path, section.columns, skipped if section.on_bad_row == "skip" else None, unread):
        yield user_view(row) if section.loss_on == "user" else tuple(row["messages"])
    if unread and not (path / "manifest.json").is_file():
        say_once(f"{path}: columns that are not read: {', '.join(sorted(unread))}")
    if skipped:
        say_once(f"{path}: {len(skipped)} rows left out (data.on_bad_row: skip): {first_faults(skipped, path)}")


def probed_in_training(
    conversations: Iterable[Sequence[Message]], questions: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield a warning for each question set of the probe that has questions which the training data contain, whatever their case,
    punctuation and the words around them. The figures of such a set show what was memorized.

    Args:
        questions: The questions of each set.
    """
    if not questions:
        return
    sought = [(name, question) for name, asked in questions.items() for question in asked]
    known, found = KnownQuestions([question for _, question in sought]), set[int]()
    for talk in conversations:
        texts = [(message["role"], meant(message["content"])) for message in talk]
        # A problem may be told in several messages.
        told = np.concatenate([text for role, text in texts if role == "user"] or [meant("")])
        found.update(*(known.within(text) for text in [told, *(text for _, text in texts)]))
    for name, count in Counter(sought[place][0] for place in sorted(found)).items():
        yield f"warning: {count} of {len(questions[name])} questions of the set {name!r} are in the training data"


def user_view(row: dict[str, Any]) -> tuple[Message, ...]:
    """Return the conversation of a row as its user knows it: the row's `intent`, if any, is the system message.

    The assistant's own system message is left out, since a user does not see it. The first user message has loss only if the
    row says `intent_first: true`.

    Raises:
        DataError: `intent` is no text.
    """
    first, *rest = (message for message in row["messages"] if message["role"] != "system")
    intent = row.get("intent")
    if intent is None:
        return (first, *rest)
    if not isinstance(intent, str) or not intent.strip():
        raise DataError(f"row {row.get('id')}: `intent` is {intent!r:.60}, expected a text or no `intent`")
    check_text(intent, f"row {row.get('id')}: `intent`")
    said = {**first, "loss": row.get("intent_first") is True and first.get("loss") is not False}
    return ({"role": "system", "content": intent.strip()}, said, *rest)


def make_rows(
    conversations: Iterable[Sequence[Message]],
    chat: Chat,
    loss_on: LossOn,
    max_length: int | None,
    skipped: Sequence[str] = (),
) -> tuple[list[dict[str, list[int]]], RowCounts]:
    """Return rows with `input_ids` and `labels`, and their counts.

    A row over `max_length` tokens is left out and counted: truncation would drop the last assistant turn or its end-of-turn
    token. `skipped` holds the faults of rows that are not among the conversations.

    Raises:
        DataError: No row is left.
    """
    rows: list[dict[str, list[int]]] = []
    count, intents, lengths, kinds = 0, 0, [0], Counter[str]()
    for count, messages in enumerate(conversations, start=1):
        intents += loss_on == "user" and messages[0]["role"] == "system"
        answers = [message for message in messages if message["role"] == "assistant" and loss_on != "user"]
        kinds["unthinking"] += chat.writes_thoughts and any(
            learned(answer) and not has_thoughts(answer) for answer in answers
        )
        kinds["doubled"] += any(chat.repeats_thinking(answer["content"]) for answer in answers)
        kinds["spelled"] += chat.spelled(messages) != list(messages)
        try:
            made = chat.training_rows(messages, loss_on)
        except TemplateError as error:
            raise TemplateError(f"conversation {count}: {error}") from None
        for row in made:
            lengths.append(len(row.input_ids))
            if max_length is None or len(row.input_ids) <= max_length:
                labels = [token if kept else IGNORED for token, kept in zip(row.input_ids, row.loss_mask, strict=True)]
                rows.append({"input_ids": row.input_ids, "labels": labels})
    longest, too_long = max(lengths), len(lengths) - 1 - len(rows)
    if not count:
        raise DataError("the data hold no conversation: the file is empty, or its build kept none")
    if not rows:
        raise DataError(
            f"no training row is left of {count} conversations: {too_long} are longer than train.max_length "
            f"{max_length} (the longest has {longest} tokens)"
        )
    tokens = sum(len(row["input_ids"]) for row in rows)
    trained = sum(label != IGNORED for row in rows for label in row["labels"])
    return rows, RowCounts(count, len(rows), tokens, trained, longest, too_long, intents, len(skipped), **kinds)


def load_rows(
    path: Path, section: DataSection, chat: Chat, max_length: int | None
) -> tuple[list[tuple[Message, ...]], list[dict[str, list[int]]], RowCounts]:
    """Return the conversations of a path, their rows and counts, and print what is left out. Raises DataError or TemplateError."""
    skipped: list[str] = []
    conversations = list(read_conversations(path, section, skipped))
    rows, counts = make_rows(conversations, chat, section.loss_on, max_length, skipped)
    check_counts(counts, section, chat, max_length)
    return conversations, rows, counts


def check_counts(counts: RowCounts, section: DataSection, chat: Chat, limit: int | None) -> None:
    """Print what is left out of the rows or trained in another way than it may be meant.

    Raises:
        TemplateError: Thoughts stand after an empty think block.
        DataError: More rows are too long than `data.max_too_long` allows.
    """
    if counts.doubled:
        raise chat.no_place_for_thoughts()
    check_too_long("rows", counts.too_long, counts.rows, f"train.max_length {limit}", section)
    if counts.unthinking:
        say_once(
            f"thoughts  {counts.unthinking:,} of {counts.conversations:,} conversations have answers without thoughts, and the template "
            "writes thoughts before answers: a model that thinks will unlearn it"
        )
    if counts.spelled:
        say_once(f"tokens    {counts.spelled:,} conversations spell special tokens, which are encoded as plain text")


def check_too_long(what: str, too_long: int, kept: int, limit: str, section: TrainingData) -> None:
    """Print how many rows are left out as too long; raise DataError if the share is above `data.max_too_long`."""
    said = f"{too_long:,} of {too_long + kept:,} {what} are longer than {limit} and left out"
    if too_long > section.max_too_long * (too_long + kept):
        raise DataError(f"{said}, more than the share data.max_too_long {section.max_too_long:g}; raise one of the two")
    if too_long:
        say_once(f"too long  {said}")


def as_dataset(rows: Sequence[dict[str, list[int]]]) -> Any:
    """Return the rows as a dataset for trl."""
    from datasets import Dataset

    return Dataset.from_list(list(rows))


def show_loss(row: dict[str, list[int]], tokenizer: Any) -> str:
    """Return one row as text, with the tokens that carry loss between ⟦ and ⟧."""
    text = ""
    # A character outside ASCII may be several tokens, so a stretch of tokens is decoded at once.
    for loss, stretch in groupby(zip(row["input_ids"], row["labels"], strict=True), lambda pair: pair[1] != IGNORED):
        words = tokenizer.decode([token for token, _ in stretch])
        text += f"⟦{words}⟧" if loss else words
    return text


def listed_kinds(kinds: Mapping[str, int]) -> str:
    """Return the kinds that rows name, with their counts, in parentheses; empty if no row names one."""
    named = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()) if kind)
    return f" ({named})" if named else ""


# --- Pairs of DPO: a conversation so far, and two replies as token ids.


@dataclass(frozen=True)
class PreferencePair:
    """One row of the preference view."""

    kind: str
    prompt: tuple[Message, ...]
    chosen: str
    rejected: str


@dataclass(frozen=True)
class PairCounts:
    """Numbers of pairs by kind, of tokens of both sides, and of pairs left out as too long."""

    pairs: int
    kinds: dict[str, int]
    tokens: int
    longest: int
    too_long: int

    def summary(self) -> str:
        """Return the counts as text for a model card."""
        return f"on {self.pairs:,} pairs{listed_kinds(self.kinds)}, {self.too_long} left out as too long."


def load_pairs(path: Path) -> Iterator[PreferencePair]:
    """Yield the pairs of a finished build's folder, or of a JSONL file with `prompt`, `chosen` and `rejected` messages.

    Raises:
        DataError: There is no file, the build is not finished, a row is no pair, or its sides are equal (file:line).
    """
    for where, _, row in view_rows(path, "preference"):
        refuse_marks(row, where)
        asked = row.get("prompt")
        asked = asked_in(row, "prompt", where) if isinstance(asked, list) else asked
        prompt = check_with_columns(renamed(asked, marks=True), row, where)
        if prompt[-1]["role"] != "user":
            raise DataError(f"{where}: the prompt ends with the assistant, expected a user message last")
        chosen, rejected = (_side(row.get(name), name, where) for name in ("chosen", "rejected"))
        if chosen.strip() == rejected.strip():
            raise DataError(f"{where}: `chosen` and `rejected` are equal, expected two different replies")
        yield PreferencePair(str(row.get("kind", "pair")), tuple(prompt), chosen, rejected)


def _side(messages: Any, name: str, where: str) -> str:
    message = messages[0] if isinstance(messages, list) and len(messages) == 1 else None
    content = message.get("content") if isinstance(message, dict) and message.get("role") == "assistant" else None
    if not isinstance(content, str) or not content.strip():
        raise DataError(f"{where}: `{name}` is {repr(messages)[:60]}, expected a list of one assistant message")
    if unread := [key for key in (*THOUGHT_FIELDS, "tool_calls") if message and message.get(key)]:
        raise DataError(
            f"{where}: `{name}` has `{unread[0]}`, expected text alone; put thoughts into it between <think> and </think>, and leave out "
            "pairs with calls"
        )
    check_text(content, f"{where}: `{name}`")
    return content


def make_pairs(
    pairs: Iterable[PreferencePair], chat: Chat, max_length: int | None
) -> tuple[list[dict[str, list[int]]], PairCounts]:
    """Return rows with `prompt_ids`, `chosen_ids` and `rejected_ids` for trl's collator, and their counts.

    Each reply has its end-of-turn token and follows exactly the prompt that inference shows. A pair with a side over
    `max_length` tokens is left out and counted.

    Raises:
        DataError: No pair is left.
    """
    rows: list[dict[str, list[int]]] = []
    kinds: Counter[str] = Counter()
    longest = too_long = 0
    for pair in pairs:
        chat.check_thinking(pair.chosen)
        if any(map(chat.repeats_thinking, (pair.chosen, pair.rejected))):
            raise chat.no_place_for_thoughts()
        prompt = list(chat.prompt_ids(pair.prompt))
        sides = [_reply_ids(chat, pair.prompt, text) for text in (pair.chosen, pair.rejected)]
        length = len(prompt) + max(map(len, sides))
        longest = max(longest, length)
        if max_length is not None and length > max_length:
            too_long += 1
            continue
        kinds[pair.kind] += 1
        rows.append({"prompt_ids": prompt, "chosen_ids": sides[0], "rejected_ids": sides[1]})
    if not rows:
        raise DataError(
            f"no pair is left: {too_long} are longer than train.max_length {max_length} (the longest has {longest} tokens)"
        )
    tokens = sum(2 * len(row["prompt_ids"]) + len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in rows)
    return rows, PairCounts(len(rows), dict(kinds), tokens, longest, too_long)


def _reply_ids(chat: Chat, prompt: Sequence[Message], text: str) -> list[int]:
    row = chat.training_rows([*prompt, {"role": "assistant", "content": text}], learned_from=False)[-1]
    return row.input_ids[len(chat.prompt_ids(prompt)) :]


# --- Prompts of GRPO: the rl rows of a data build, as trl's dataset and by id for rollouts.


@dataclass(frozen=True)
class PromptCounts:
    """Numbers of prompts by kind, of their tokens, and of rows left out as too long or held out."""

    prompts: int
    kinds: dict[str, int]
    tokens: int
    longest: int
    too_long: int
    held_out: int = 0

    def summary(self) -> str:
        """Return the counts as text for a model card."""
        held_out = f", {self.held_out} held out" if self.held_out else ""
        return f"{self.prompts:,} prompts{listed_kinds(self.kinds)}, {self.too_long} left out as too long{held_out}"


@dataclass(frozen=True)
class Prompts:
    """Rows by id: those to train on, in the order of the data (trl shuffles them with `train.seed`), and those held out."""

    trained: dict[str, PromptRow]
    held_out: dict[str, PromptRow]
    counts: PromptCounts

    @property
    def every(self) -> dict[str, PromptRow]:
        return {**self.trained, **self.held_out}


def choose_prompts(recipe: GrpoRecipe, where: Path, chat: Chat, seed: int, least: int) -> Prompts:
    """Choose the prompts to train on and those to hold out from a data build's rl rows.

    Args:
        where: The data build, or a file of prompts.
        least: Prompts of one generation batch; with fewer, trl would train no step.

    Raises:
        DataError: The recipe names an unknown kind, there are too few prompts, or they lack what the reward needs.
    """
    section, rows = recipe.data, tellable(load_rl_rows(where), recipe.rollout)
    kept = [row for row in rows if section.kinds is None or row.kind in section.kinds]
    known = {row.kind for row in rows}
    for kind in section.kinds or ():
        if kind not in known:
            raise DataError(f"{where}: data.kinds: no prompt of the kind {kind}, there are {', '.join(sorted(known))}")
    for row in kept:
        chat.check_prompt(row.prompt)
    sizes = {row.id: len(chat.prompt_ids(row.prompt)) for row in kept}
    short = [row for row in kept if sizes[row.id] <= section.max_prompt_tokens]
    too_long = len(kept) - len(short)
    check_too_long("prompts", too_long, len(short), f"data.max_prompt_tokens {section.max_prompt_tokens}", section)
    # By problem: one that is trained on in one conversation is known in its others.
    problems = sorted({row.problem for row in short})
    if section.held_out >= len(problems) and section.held_out:
        raise DataError(f"{where}: data.held_out: given {section.held_out}, of {len(problems)} problems")
    unseen = set(random.Random(f"held out:{seed}").sample(problems, section.held_out))
    held_out = {row.id: row for row in short if row.problem in unseen}
    short = [row for row in short if row.problem not in unseen]
    if len(short) < least:
        raise DataError(
            f"{where}: {len(short)} prompts, expected at least the {least} of one generation batch "
            f"({too_long} are longer than data.max_prompt_tokens {section.max_prompt_tokens})"
        )
    kinds, tokens = Counter(row.kind for row in short), sum(sizes[row.id] for row in short)
    longest = max(sizes.values(), default=0)
    counts = PromptCounts(len(short), dict(kinds), tokens, longest, too_long, len(held_out))
    prompts = Prompts({row.id: row for row in short}, held_out, counts)
    check_columns(prompts.every.values(), recipe.reward.weight_of, str(where))
    return prompts


def tellable(rows: Iterable[PromptRow], rollout: RolloutSection) -> list[PromptRow]:
    """Return the prompts whose pieces all fit in the turns of a rollout, and print how many do not."""
    every = list(rows)
    exchanges = rollout.max_turns - 1 if rollout.mode == "conversation" else rollout.window
    kept = [row for row in every if len(row.shards) <= exchanges]
    if len(kept) < len(every):
        say_once(
            f"prompts   {len(every) - len(kept)} of {len(every)} left out: the user reveals their problems in more than "
            f"{exchanges} further messages (rollout.{'max_turns' if rollout.mode == 'conversation' else 'window'})"
        )
    return kept


def prompt_dataset(rows: Iterable[PromptRow]) -> Any:
    """Return trl's dataset: `prompt`, and in `row` the id of its row."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": list(row.prompt), "row": row.id} for row in rows])
