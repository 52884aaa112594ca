"""Probe the model in training: the base before step 1, and every checkpoint right after it is saved.

All ranks share the work. Rank 0 runs the probe as `probe run` would. Its engine sends batches of prompts to all ranks, each
rank generates its share with the live weights (gathered under ZeRO-3), or with the vLLM that GRPO has in the process, and
rank 0 collects. The results are in RUN_DIR/probe/{base,step-N}, their comparison in RUN_DIR/probe/comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from nextturn.probe.chat import Chat
from nextturn.probe.engines.base import Completion, Engine, Request, ScoreRequest
from nextturn.probe.engines.hf import HfEngine, live_model
from nextturn.probe.errors import BadInput, DataError, NextturnError, one_line
from nextturn.probe.measure.run import LoadedSet, load_sets, run_probe
from nextturn.probe.models import ModelFolder, emulates_bfloat16, model_info, resolve
from nextturn.probe.report.compare import compare
from nextturn.probe.report.tracking import track_probe
from nextturn.probe.settings import ProbeSection
from nextturn.probe.terminal import say
from nextturn.train.checkpoints import watch_line
from nextturn.train.colocated import ColocatedVllm
from nextturn.train.overrides import awake


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
            f"probe.dtype: given {probe.dtype}, expected auto: DeepSpeed's live weights are measured as they are"
        )
    if probe.dtype == "bfloat16" and trainer.args.use_cpu and emulates_bfloat16():
        say("probe.dtype: float32 instead of bfloat16, for which this CPU has no instructions")
        probe = probe.model_copy(update={"dtype": "float32"})
    if probe.dtype != "auto" or trainer.is_deepspeed_enabled:
        dtype = probe.dtype
    trainer.add_callback(ProbeCallback(trainer, probe, folder, chat, sets, dtype, check))


class ProbeCallback(TrainerCallback):
    """Runs the probe inside training and sends its results to the tracker. Arguments as of `probe_checkpoints`."""

    def __init__(
        self,
        trainer: Any,
        probe: ProbeSection,
        folder: ModelFolder,
        chat: Chat,
        sets: Sequence[LoadedSet],
        dtype: str,
        check: Callable[[], None],
    ) -> None:
        self.trainer, self.probe, self.folder, self.chat, self.sets = trainer, probe, folder, chat, sets
        self.dtype, self.check = dtype, check
        self.run_dir = Path(trainer.args.output_dir)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._measure("base", 0)
        else:  # resumed: the live weights are those of the checkpoint, whose probe a kill may have interrupted
            self.on_save(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._measure(f"step-{state.global_step}", state.global_step)

    def _measure(self, label: str, step: int) -> None:
        import torch

        accelerator, out = self.trainer.accelerator, self.run_dir / "probe" / label
        accelerator.wait_for_everyone()
        with ExitStack() as stack:
            # Loading a base draws random numbers. With others, trl would shuffle the next samples differently than in a
            # resumed run.
            devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            stack.enter_context(torch.random.fork_rng(devices))
            # trl's vLLM gets the weights before they are gathered for the model that scores.
            llm = stack.enter_context(awake(self.trainer.vllm_generation)) if asks_vllm(self.probe) else None
            model = stack.enter_context(live_model(self.trainer, self.dtype))
            engine: Engine = HfEngine(model, self.chat.tokenizer, self.probe.batch_tokens)
            if llm is not None:
                engine = ColocatedVllm(llm, self.chat.tokenizer, scores=engine)
            if accelerator.num_processes == 1:
                self._run(engine, label, step, out)
            else:
                shared = SharedEngine(engine, accelerator)
                if accelerator.is_main_process:
                    with shared:
                        self._run(shared, label, step, out)
                else:
                    shared.serve()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # caches of large batches, which training needs in other sizes
        if accelerator.is_main_process:
            compare([self.run_dir], self.run_dir / "probe" / "comparison")
            track_probe(out, self.run_dir / "probe" / "comparison" / "tradeoff.png")
        # The next step's collectives may be of a group whose time limit is shorter than `ddp_timeout`: DeepSpeed's own.
        accelerator.wait_for_everyone()

    def _run(self, engine: Engine, label: str, step: int, out: Path) -> None:
        folder = resolve(str(self.run_dir / f"checkpoint-{step}")) if step else self.folder
        info = model_info(folder, self.chat, label, step)
        run_probe(engine, self.chat, info, self.probe, out, self.sets, self.check)


# --- One engine on all ranks.

# Requests per rank and round of an engine that makes each by itself: enough that slow requests weigh little, few enough that
# a kill loses a minute at most.
_ROUND = 1024


class SharedEngine:
    """An engine over several ranks. Rank 0 asks it within a `with` block; the others `serve` until that block ends.

    If the engine makes requests in batches, each rank gets one batch at a time.
    """

    def __init__(self, engine: Engine, accelerator: Any) -> None:
        self.engine, self.name = engine, engine.name
        self._ranks: int = accelerator.num_processes
        self._rank: int = accelerator.process_index
        self._failed = False

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return what all ranks make in a round, for each round; single requests if the engine makes those."""
        batches = self.engine.batches(requests)
        if _are_single(batches):
            return batches
        return [[index for batch in shares for index in batch] for shares in self._rounds(batches)]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        batches = self.engine.batches(requests)
        if _are_single(batches):
            batches = list(_parts([index for batch in batches for index in batch], -(-len(batches) // _ROUND)))
        for shares in self._rounds(batches):
            yield from self._share("stream", requests, shares)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yield scores. Equal prefixes stay together, so that a rank computes a context once for all its user turns."""
        if requests:
            order = sorted(range(len(requests)), key=lambda index: requests[index].prefix_ids)
            yield from self._share("score", requests, list(_parts(order, self._ranks)))

    def serve(self) -> None:
        """Make this rank's shares until rank 0 is done. Raises NextturnError if rank 0 fails."""
        while self._round() is not None:
            pass

    def close(self) -> None:
        """Do nothing: the `with` block ends the other ranks."""

    def __enter__(self) -> SharedEngine:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: Any) -> None:
        """Let the other ranks continue, or end them with the error of rank 0."""
        from accelerate.utils import broadcast_object_list

        if error is not None and not isinstance(error, NextturnError):
            error = NextturnError(f"the probe failed; rank 0: {type(error).__name__}: {one_line(error)}")
        # After a failed round every rank has left. An interrupt may come within a round, where a broadcast would not match.
        if not self._failed and (error is None or isinstance(error, Exception)):
            broadcast_object_list([error])

    def _rounds(self, batches: list[list[int]]) -> Iterator[list[list[int]]]:
        """Yield one share for each rank, round after round: a batch each, and even parts of the rest at the end."""
        whole = len(batches) // self._ranks * self._ranks
        for start in range(0, whole, self._ranks):
            yield batches[start : start + self._ranks]
        if rest := [index for batch in batches[whole:] for index in batch]:
            yield list(_parts(rest, self._ranks))

    def _share(self, method: str, requests: Sequence[Any], shares: list[list[int]]) -> Iterator[Any]:
        """Do a round of `method` on all ranks, each with the requests at its indices."""
        order = [index for share in shares for index in share]
        for position, result in self._round(method, [[requests[index] for index in share] for share in shares]):
            yield order[position], result

    def _round(self, method: str | None = None, shares: list[list[Any]] | None = None) -> Any:
        """Do one round on this rank.

        Args:
            method: The engine's method, on rank 0. The other ranks receive it.
            shares: The requests of each rank, on rank 0.

        Returns:
            Pairs (position in all shares, completion or score), or None if rank 0 is done.
        """
        from accelerate.utils import broadcast_object_list, gather_object

        work = broadcast_object_list([(method, shares) if method else None])[0]
        if work is None:
            return None
        if isinstance(work, NextturnError):
            raise work
        method, shares = work
        first = sum(len(share) for share in shares[: self._rank])
        try:
            own: Any = [(first + index, result) for index, result in getattr(self.engine, method)(shares[self._rank])]
        except Exception as error:  # noqa: BLE001 - raised on every rank below, so that none waits for this one
            own = [(None, f"rank {self._rank}: {type(error).__name__}: {error}")]
        gathered = gather_object(own)
        if errors := [result for position, result in gathered if position is None]:
            self._failed = True
            raise NextturnError(f"the probe failed; {errors[0]}")
        return gathered


def _are_single(batches: list[list[int]]) -> bool:
    return all(len(batch) == 1 for batch in batches)


def _parts(indices: Sequence[int], number: int) -> Iterator[list[int]]:
    """Yield `number` even parts, in order."""
    for part in range(number):
        yield list(indices[len(indices) * part // number : len(indices) * (part + 1) // number])
