"""Probe the model in training: the base before step 1, and every checkpoint right after it is saved.

All ranks share the work. Rank 0 runs the probe as `probe run` would. Its engine sends batches of prompts to all ranks, each
rank generates its share with the live weights (gathered under ZeRO-3), or with the vLLM that GRPO has in the process, and
rank 0 collects. The results are in RUN_DIR/probe/{base,step-N}, their comparison in RUN_DIR/probe/comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.callback import ProbeCallback
from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.sections import ProbeSection
from nextturn.probe.command.terminal import say
from nextturn.probe.compare import compare
from nextturn.probe.engines.base import Engine
from nextturn.probe.engines.hf import HfEngine, live_model, plain_forward
from nextturn.probe.models.folders import ModelFolder, model_info, resolve
from nextturn.probe.plan import LoadedSet, load_sets
from nextturn.probe.report.tracking import headline_line, track_probe
from nextturn.probe.run import run_probe
from nextturn.probe.text.chat import Chat
from nextturn.train.colocated import ColocatedVllm
from nextturn.train.overrides import awake
from nextturn.train.resume import watch_line
from nextturn.train.setup import dtype_here


def sets_to_probe(probe: ProbeSection | None, run_dir: Path, before_build: bool = False) -> list[LoadedSet]:
    """Return the sets that the inline probe measures, without gated sets that cannot be downloaded.

    Args:
        before_build: Skip files that do not exist yet, which the build of the data may write.

    Returns:
        The sets; none unless `when: inline`.

    Raises:
        DataError: A set cannot be used, or none of the sets can be downloaded.
    """
    if probe is None or probe.when != "inline":
        return []
    sets = probe.sets
    if before_build:
        sets = {name: section for name, section in sets.items() if not section.path or Path(section.path).exists()}
        if not sets:
            return []
    loaded = load_sets(probe.model_copy(update={"sets": sets}), run_dir / "probe" / "base")
    if not loaded and sets == probe.sets:
        raise DataError("probe.sets: none of the sets can be downloaded; name another, or give a file with its `path`")
    return loaded


def asks_vllm(probe: ProbeSection | None) -> bool:
    """Return True if the inline probe uses trl's vLLM."""
    return probe is not None and probe.when == "inline" and probe.engine == "vllm"


def probe_checkpoints(
    trainer: Any,
    probe: ProbeSection | None,
    folder: ModelFolder,
    chat: Chat,
    sets: Sequence[LoadedSet],
    dtype: str,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Have `trainer` probe as `probe.when` says. Call it after `mark_checkpoints`.

    Args:
        folder: The base model.
        sets: What is measured, on rank 0.
        dtype: The recipe's `model.dtype`, in which live weights are measured if `probe.dtype` is auto, also if they are
            stored in float32 for the optimizer.
        check: Called on rank 0 between batches and verdicts. An exception of it ends the run on all ranks.

    Raises:
        BadInput: DeepSpeed's live weights cannot be measured in `probe.dtype`.
    """
    if probe is None or probe.when == "never":
        return
    if probe.when == "watch":
        say(watch_line(Path(trainer.args.output_dir)))
        return
    if probe.dtype != "auto" and trainer.is_deepspeed_enabled:
        raise BadInput(
            f"probe.dtype: given {probe.dtype}, expected auto: with DeepSpeed the weights in training are measured without a conversion"
        )
    probe = probe.model_copy(update={"dtype": dtype_here(probe.dtype, trainer.args, "probe.dtype")})
    if probe.dtype != "auto" or trainer.is_deepspeed_enabled:
        dtype = probe.dtype
    trainer.add_callback(CheckpointProbe(trainer, probe, folder, chat, sets, dtype, check))


@dataclass(eq=False)
class CheckpointProbe(ProbeCallback):
    """A `ProbeCallback` whose models are folders: base and checkpoints. Arguments as of `probe_checkpoints`."""

    trainer: Any
    probe: ProbeSection
    folder: ModelFolder
    chat: Chat
    sets: Sequence[LoadedSet]
    dtype: str
    check: Callable[[], None]

    def __post_init__(self) -> None:
        self.every, self.out = None, None
        self.run_dir = Path(self.trainer.args.output_dir)

    # The base, or in a resumed run the live weights of the checkpoint, whose probe a kill may have interrupted.
    on_train_begin = ProbeCallback.on_save

    @contextmanager
    def opened(self, model: Any, chat: Chat) -> Iterator[tuple[Any, Engine, str]]:
        """Provide a copy in the dtype of the run's probes, and trl's vLLM as the engine if the recipe asks for it."""
        # trl's vLLM gets the weights before they are gathered for the model that scores.
        asked = awake(self.trainer.vllm_generation) if asks_vllm(self.probe) else nullcontext()
        with asked as llm, live_model(self.trainer, self.dtype, merged=True) as live, plain_forward(live) as dtype:
            engine: Engine = HfEngine(live, chat.tokenizer, self.probe.batch_tokens)
            if llm is not None:
                engine = ColocatedVllm(llm, chat.tokenizer, scores=engine)
                dtype = str(llm.llm_engine.model_config.dtype).removeprefix("torch.")
            yield live, engine, dtype

    def run(self, engine: Engine, live: Any, chat: Chat, probe: ProbeSection, folder: Path, step: int) -> None:
        measured = resolve(str(self.run_dir / f"checkpoint-{step}")) if step else self.folder
        info = model_info(measured, chat, folder.name, step)
        run_probe(engine, chat, info, probe, folder, self.sets, self.check)

    def report(self, args: Any, state: Any, control: Any, folder: Path) -> None:
        """Compare the probes so far, and send the new one to the tracker."""
        comparison = self.run_dir / "probe" / "comparison"
        compare([self.run_dir], comparison)
        say(f"{folder.name}: {headline_line(folder)}; {comparison / 'report.html'}")
        track_probe(folder, comparison / "tradeoff.png")
