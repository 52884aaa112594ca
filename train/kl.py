"""SFT that forgets less: beside the data, the model is held to what its base says of its own accord.

    loss + coefficient * KL(base || student)        in nats a token, mean over answers

The answers are the base's own to plain problems, sampled and unfiltered: right ones alone would be another distribution than
the one to keep (arXiv 2605.26097; that this KL tells what is forgotten: arXiv 2509.04259). The base is the model with its
adapter switched off, or, where all weights are trained, a frozen copy. The distributions are whole, a few tokens at a time
(probe/divergence.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_builders.problems import Problems
from data_builders.replay import question
from probe.chat import Chat, Message
from probe.divergence import hidden_states, kl_per_token, why_not
from probe.engines.base import Request, item_seed
from probe.engines.hf import HfEngine
from probe.errors import BadInput, DataError
from probe.files import read_json, read_jsonl, write_jsonl
from probe.models import ModelFolder, load_model
from probe.run import model_info
from probe.store import StoredEngine
from probe.terminal import collected, say
from train.recipe import KlSection
from train.rows import IGNORED, data_path, make_rows, read_conversations


def check_base(folder: ModelFolder, zero: int) -> None:
    """What a model and a launch have to be for a `kl:` section.

    Raises:
        BadInput: the base is quantised, its head is none that is known here, or ZeRO-3 is in force.
    """
    if zero == 3:
        raise BadInput(
            "kl: not under ZeRO-3, which spreads the weights that it reads whole; wanted ZeRO-2 or one process"
        )
    config = read_json(folder.path / "config.json")
    if "quantization_config" in config:
        raise BadInput(
            f"kl: {folder.name} is quantised, so that it would be held to rounding errors; wanted its unquantised weights"
        )
    from transformers import AutoConfig

    if reason := why_not(AutoConfig.from_pretrained(folder.path, trust_remote_code=False)):
        raise BadInput(f"kl: {reason}")


# --- The base's own answers: one to each problem, made before the first step, or made elsewhere.


def answer_rows(
    section: KlSection, folder: ModelFolder, chat: Chat, args: Any, run_dir: Path, dtype: str
) -> list[dict[str, list[int]]]:
    """The rows as `make_rows` has them; on every process the same. All processes share the answering.

    Args:
        args: trl's config; `max_length` and `seed` count.
        dtype: of the base's weights while it answers.

    Raises:
        DataError: no answer is there, or all are longer than `train.max_length`.
    """
    if section.answers is not None:
        answers = list(read_conversations(data_path(section.answers, None)))
    else:
        answers = _own_answers(section, folder, chat, args, run_dir / "kl", dtype)
    if not answers:
        raise DataError(f"kl: no answers in {section.answers}, wanted at least one")
    rows, counts = make_rows(answers, chat, "assistant", args.max_length, learned_from=False)
    say(f"kl        {len(rows):,} answers of the base, {counts.loss_tokens:,} tokens, {counts.too_long} too long")
    return rows


def _own_answers(
    section: KlSection, folder: ModelFolder, chat: Chat, args: Any, out: Path, dtype: str
) -> list[tuple[Message, ...]]:
    import torch
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    from train.probing import SharedEngine

    state, made = PartialState(), out / "answers.jsonl"
    answers: list[tuple[Message, ...]] | None = None
    if state.is_main_process and made.is_file():
        answers = [tuple(row["messages"]) for _, row in read_jsonl(made)]
    if broadcast_object_list([answers is None])[0]:
        device = "cpu" if args.use_cpu else str(args.device)
        shared = SharedEngine(HfEngine(None, chat.tokenizer, load=lambda: load_model(folder, dtype, device)), state)
        if state.is_main_process:
            try:
                assert section.problems is not None
                problems = Problems(section.problems, args.seed, where="kl.problems")
                tasks = [problems[index] for index in range(len(problems))]
                requests = [
                    Request(
                        chat.prompt_ids(question(task)), section.max_answer_tokens, chat.stop_ids, section.temperature,
                        item_seed(args.seed, "kl", task.id),
                    )
                    for task in tasks
                ]  # fmt: skip
                out.mkdir(parents=True, exist_ok=True)
                stored = StoredEngine(shared, out, model_info(folder, chat, "base", 0))
                replies = collected(stored.stream(requests), len(requests), "the base answers")
                stored.close()
            finally:
                shared.close()
            answers = [
                (*question(task), {"role": "assistant", "content": reply.text.strip()})
                for task, reply in zip(tasks, replies, strict=True)
            ]
            write_jsonl(made, [{"id": task.id, "messages": said} for task, said in zip(tasks, answers, strict=True)])
        else:
            shared.serve()
        shared.engine.close()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    found: list[tuple[Message, ...]] = broadcast_object_list([answers])[0]
    return found


# --- The term beside the loss.


def rows_beside(rows: float, share: float) -> float:
    """How many answers stand beside `rows` rows of data, so that they are `share` of all."""
    return rows * share / (1 - share)


def hold_to_base(trainer: Any, section: KlSection, rows: Sequence[dict[str, list[int]]], folder: ModelFolder) -> None:
    """Adds the term to `trainer`'s loss and logs it as `kl`; the logged `loss` stays that of the data alone.

    Args:
        rows: from `answer_rows`.
        folder: of the base.
    """
    term = _Term(trainer, section, rows, folder)
    plain_loss, plain_step = trainer.compute_loss, trainer.training_step

    def compute_loss(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        loss = plain_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        # transformers divides by the parts of a step itself where the tokens of a step are not counted.
        parts = trainer.current_gradient_accumulation_steps
        added = section.coefficient * term() / parts
        term.added = added.detach()
        return loss + (added if num_items_in_batch is not None else added * parts)

    def training_step(*args: Any, **kwargs: Any) -> Any:
        return plain_step(*args, **kwargs) - term.added

    trainer.compute_loss, trainer.training_step = compute_loss, training_step


class _Term:
    """KL(base || student) on this micro-batch's share of the answers.

    Which they are follows from the step alone, so that a resumed run takes the same: each process takes every n-th answer of
    an order drawn by the seed, and as many as the share asks for on average, where that is no whole number.

    Attributes:
        added: what was last added to a loss.
    """

    added: Any = 0.0

    def __init__(
        self, trainer: Any, section: KlSection, rows: Sequence[dict[str, list[int]]], folder: ModelFolder
    ) -> None:
        from train.probing import base_of

        self.trainer, self.rows = trainer, rows
        self.each = rows_beside(trainer.args.per_device_train_batch_size, section.share)
        self.order = random.Random(f"kl:{trainer.args.seed}").sample(range(len(rows)), len(rows))
        self.place = (-1, 0)  # the step, and the micro-batch within it
        self.base = base_of(trainer.model, folder)

    def __call__(self) -> Any:
        """The sum over the answers of their means over tokens, divided by how many there are on average."""
        import torch

        model, accelerator = self.trainer.model, self.trainer.accelerator
        rows = [self.rows[index] for index in self._next()]
        kl = torch.zeros((), device=accelerator.device)
        if rows:
            ids, mask, places, lengths = _padded(rows, accelerator.device)
            with accelerator.autocast():
                with self.base() as base, torch.no_grad():
                    base_hidden = hidden_states(base, ids, mask, places)
                hidden = hidden_states(model, ids, mask, places)
                each = kl_per_token(model, hidden, base, base_hidden)
            kl = torch.stack([part.mean() for part in each.split(lengths)]).sum() / self.each
        mean = accelerator.reduce(kl.detach(), reduction="mean")
        self.trainer._metrics["train"]["kl"].append(mean.item())
        return kl

    def _next(self) -> list[int]:
        step, accelerator = self.trainer.state.global_step, self.trainer.accelerator
        self.place = (step, self.place[1] + 1 if self.place[0] == step else 0)
        number = step * self.trainer.args.gradient_accumulation_steps + self.place[1]
        first, end = (math.floor(self.each * count + 1e-9) for count in (number, number + 1))
        ranks, rank = accelerator.num_processes, accelerator.process_index
        return [self.order[(place * ranks + rank) % len(self.order)] for place in range(first, end)]


def _padded(rows: Sequence[dict[str, list[int]]], device: Any) -> tuple[Any, Any, Any, list[int]]:
    """ids and attention mask [B, T], padded on the right; the places before the tokens that count; how many each row has."""
    import torch

    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask, places, lengths = torch.zeros_like(ids), [], []
    for number, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[number, :length] = torch.tensor(row["input_ids"])
        mask[number, :length] = 1
        before = [number * longest + place - 1 for place, label in enumerate(row["labels"]) if label != IGNORED]
        places += before
        lengths.append(len(before))
    return ids.to(device), mask.to(device), torch.tensor(places, device=device), lengths
