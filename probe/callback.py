"""The probe in anybody's training script: `measure_model` for a model in memory, `ProbeCallback` for a trainer.

    trainer.add_callback(ProbeCallback(sets={"gsm8k": {"n": 100}}, trainer=trainer))

It works with transformers' Trainer and trl's trainers. Results are in OUTPUT_DIR/probe/{base,step-N}, which `nextturn probe
compare` reads, and the figures go to what the trainer reports to.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from nextturn.probe.command.errors import BadInput, SettingsChanged
from nextturn.probe.command.files import sha256_text
from nextturn.probe.command.recipe import section_from
from nextturn.probe.command.sections import ProbeSection
from nextturn.probe.command.terminal import say
from nextturn.probe.engines.base import Engine
from nextturn.probe.engines.hf import HfEngine, live_model, plain_forward
from nextturn.probe.engines.shared import on_all_ranks
from nextturn.probe.models.folders import ModelInfo
from nextturn.probe.plan import LoadedSet, load_sets
from nextturn.probe.report.tracking import headline_line, headlines, track_probe
from nextturn.probe.results import read_results
from nextturn.probe.run import run_probe
from nextturn.probe.text.chat import Chat

Sets = Mapping[str, str | Mapping[str, Any]]
"""Question sets by name: the path of a file, or keys of the recipe's `probe.sets.NAME`."""


def measure_model(
    model: Any, tokenizer: Any, sets: Sets, out: Path | str | None = None, label: str = "model", **keys: Any
) -> dict[str, Any]:
    """Measure a model in memory and return what `nextturn probe run` writes as results.json.

    Args:
        model: A causal language model of transformers, also with a LoRA adapter. It is put into eval mode and back.
        tokenizer: Its tokenizer, with a chat template.
        sets: The question sets.
        out: The run's folder, which `nextturn probe compare` reads; default: none is kept.
        label: Name of the model in tables.
        keys: Other keys of a recipe's `probe:` section, such as `temperatures=[0.0, 0.7]` or `judge_server={...}`.

    Raises:
        BadInput: A key, a set or the tokenizer's template cannot be used.
        SettingsChanged: `out` holds a run of other weights or settings.
    """
    probe = _section(sets, keys)
    chat = Chat(tokenizer, probe.switches, ends_of(model))
    with ExitStack() as stack:
        folder = Path(out) if out else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        live = stack.enter_context(_evaluated(model))
        engine = HfEngine(live, tokenizer, probe.batch_tokens)
        probe = probe.model_copy(update={"dtype": stack.enter_context(plain_forward(live))})
        return run_probe(engine, chat, info_of(live, chat, label), probe, folder)


class ProbeCallback(TrainerCallback):
    """Measures the model before the first step and at every save, or every so many steps.

    Args:
        sets: The question sets.
        trainer: The trainer. It is needed with several processes or DeepSpeed, whose weights only the trainer can gather, and
            to send figures to other trackers than wandb.
        every: Steps between two measurements; default: at every save.
        out: Where the results are written; default: OUTPUT_DIR/probe.
        keys: Other keys of a recipe's `probe:` section.

    Attributes:
        results: What results.json holds of each measurement so far, by name: `results["base"]`, `results["step-100"]`. On the
            main process only.

    Raises:
        BadInput: A key or a set cannot be used.
    """

    def __init__(
        self, sets: Sets, trainer: Any = None, every: int | None = None, out: Path | str | None = None, **keys: Any
    ) -> None:
        self.probe = _section(sets, keys)
        self.trainer, self.every, self.out = trainer, every, Path(out) if out else None
        self.chat: Chat | None = None  # default: with the trainer's tokenizer
        self.results: dict[str, dict[str, Any]] = {}
        self.sets: Sequence[LoadedSet] = load_sets(self.probe)  # a wrong set ends the script before training begins

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.load_best_model_at_end and "probe/" in str(args.metric_for_best_model):
            raise BadInput("metric_for_best_model: the trainer chooses before the probe measures; name a loss")
        if state.global_step == 0:
            self.measure(args, state, control, **kwargs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.every is None:
            self.measure(args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.every and state.global_step % self.every == 0:
            self.measure(args, state, control, **kwargs)

    def measure(
        self, args: Any, state: Any, control: Any, model: Any = None, processing_class: Any = None, **_: Any
    ) -> None:
        """Measure the model in training, and report what was found. All processes call this together."""
        import torch
        from accelerate import PartialState

        ranks, step = PartialState(), state.global_step
        if self.trainer is None and (ranks.num_processes > 1 or args.deepspeed):
            raise BadInput("ProbeCallback: with several processes or DeepSpeed it needs the trainer: trainer=trainer")
        if self.chat is None and processing_class is None:
            raise BadInput("ProbeCallback: the trainer has no tokenizer; give it one: processing_class=tokenizer")
        chat = self.chat or Chat(processing_class, self.probe.switches, ends_of(model))
        folder = (self.out or Path(args.output_dir) / "probe") / (f"step-{step}" if step else "base")
        ranks.wait_for_everyone()
        with ExitStack() as stack:
            # The probe draws random numbers, and training must draw the same ones as without it.
            devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            stack.enter_context(torch.random.fork_rng(devices))
            live, engine, dtype = stack.enter_context(self.opened(model, chat))
            probe = self.probe.model_copy(update={"dtype": dtype})
            on_all_ranks(engine, ranks, lambda shared: self.run(shared, live, chat, probe, folder, step))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # caches of large batches, which training needs in other sizes
        if ranks.is_main_process:
            self.report(args, state, control, folder)
        # The next step's collectives may be of a group whose time limit is shorter than `ddp_timeout`: DeepSpeed's own.
        ranks.wait_for_everyone()

    @contextmanager
    def opened(self, model: Any, chat: Chat) -> Iterator[tuple[Any, Engine, str]]:
        """Provide the model in training as it is measured, an engine that serves it, and the dtype in which it computes."""
        with (
            live_model(self.trainer, merged=True) if self.trainer else _evaluated(model) as live,
            plain_forward(live) as dtype,
        ):
            yield live, HfEngine(live, chat.tokenizer, self.probe.batch_tokens), dtype

    def run(self, engine: Engine, live: Any, chat: Chat, probe: ProbeSection, folder: Path, step: int) -> None:
        """Run the probe on process 0, where `engine` hands work to all of them."""
        run = partial(run_probe, engine, chat, info_of(live, chat, folder.name, step), probe, folder, self.sets)
        try:
            self.results[folder.name] = run()
        except SettingsChanged as error:  # of an earlier training into the same folder
            aside = folder.with_name(f"before-{time.time_ns()}-{folder.name}")
            say(f"{error}; that probe is set aside as {aside}")
            folder.rename(aside)
            self.results[folder.name] = run()

    def report(self, args: Any, state: Any, control: Any, folder: Path) -> None:
        """Print the headlines and hand them to the trainer's reporters; wandb gets all figures.

        `trainer.log` would drop what trl has collected for its next log.
        """
        say(f"{folder}: {headline_line(folder)}")
        track_probe(folder)
        if self.trainer is None:
            return
        figures = headlines(read_results(folder))
        state.log_history.append({**figures, "step": state.global_step})
        for callback in self.trainer.callback_handler.callbacks:
            if callback is not self and type(callback).__name__ != "WandbCallback":
                callback.on_log(args, state, control, logs=dict(figures))


def _section(sets: Sets, keys: Mapping[str, Any]) -> ProbeSection:
    def keys_of(of_set: str | Mapping[str, Any]) -> dict[str, Any]:
        return dict(of_set) if isinstance(of_set, Mapping) else {"path": str(of_set)}

    given = {name: keys_of(of_set) for name, of_set in sets.items()}
    return section_from(ProbeSection, {"sets": given, **keys}, "probe")


@contextmanager
def _evaluated(model: Any) -> Iterator[Any]:
    training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(training)


def ends_of(model: Any) -> tuple[int, ...]:
    """Return the ids that end a text by the generation config of a model in memory."""
    ends = model.generation_config.eos_token_id
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)


def info_of(model: Any, chat: Chat, label: str, step: int | None = None) -> ModelInfo:
    """Return what results.json says of a model in memory. Sums of its weights replace their hash: they distinguish checkpoints of
    one run apart."""
    tensors = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
    sums = [(name, tuple(tensor.shape), float(tensor.double().sum())) for name, tensor in tensors]
    path = getattr(model.config, "_name_or_path", "") or label
    parameters = sum(math.prod(shape) for name, shape, _ in sums if "lora_" not in name)
    return ModelInfo(path, label, step, sha256_text(repr(sums)), chat.template_sha256, parameters)
