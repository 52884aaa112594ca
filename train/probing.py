"""Probes the model in training: the base before step 1, and every checkpoint right after it is saved.

All ranks share the work. Rank 0 runs the probe as `probe run` would; its engine sends each batch of prompts to
all ranks, every rank completes its share on the live weights (gathered under ZeRO-3), or with the vLLM that GRPO has in the
process anyway, which gets them first; and rank 0 collects.
The results lie in RUN_DIR/probe/{base,step-N}, the comparison of all of them in RUN_DIR/probe/comparison, which rank 0 makes
while the others wait.
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
from nextturn.probe.measure.run import LoadedSet, load_sets, model_info, run_probe
from nextturn.probe.models import ModelFolder, emulates_bfloat16, resolve
from nextturn.probe.report.compare import compare
from nextturn.probe.report.tracking import declare_figures, track_probe
from nextturn.probe.settings import ProbeSection
from nextturn.probe.terminal import say
from nextturn.train.checkpoints import watch_line
from nextturn.train.colocated import ColocatedVllm
from nextturn.train.overrides import awake


def sets_to_probe(probe: ProbeSection | None, run_dir: Path, before_build: bool = False) -> list[LoadedSet]:
    """Return the sets that the inline probe asks, without gated ones that cannot be had; none unless `when: inline`.

    Args:
        before_build: Skip the files that are not there yet, which the build of the data may write.

    Raises:
        DataError: A set cannot be used, or every set is left out.
    """
    if probe is None or probe.when != "inline":
        return []
    there = probe.sets
    if before_build:
        there = {name: one for name, one in probe.sets.items() if one.path is None or Path(one.path).exists()}
        if not there:
            return []
    found = load_sets(probe.model_copy(update={"sets": there}), run_dir / "probe" / "base")
    if not found and there == probe.sets:  # before a build and a model's load, not at the first probe
        raise DataError("probe.sets: none of the sets can be had; name one that can, or give a file with its `path`")
    return found


def asks_vllm(probe: ProbeSection | None) -> bool:
    """Whether the live weights are measured by trl's vLLM, in the training processes."""
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
    """Has `trainer` probe as `probe.when` says, and say how where that is elsewhere; call it after `mark_checkpoints`.

    Args:
        folder: of the base model.
        dtype: the recipe's `model.dtype`, in which live weights are measured where `probe.dtype` is auto, also where they
            are held in float32 for the optimizer's sake.
        check: called on rank 0 between batches and verdicts; what it raises ends the run on all ranks.

    Raises:
        BadInput: `probe.dtype` is none that DeepSpeed's live weights can be measured in.
    """
    if probe is None or probe.when == "never":
        return
    if probe.when == "watch":
        say(watch_line(Path(trainer.args.output_dir)))
        trainer.add_callback(WatchedCallback())
        return
    if probe.dtype != "auto" and trainer.is_deepspeed_enabled:
        raise BadInput(f"probe.dtype: {probe.dtype}, wanted auto: DeepSpeed's live weights are measured as they are")
    if probe.dtype == "bfloat16" and trainer.args.use_cpu and emulates_bfloat16():
        say("probe.dtype: float32 in place of bfloat16, for which this CPU has no instructions")
        probe = probe.model_copy(update={"dtype": "float32"})
    if probe.dtype != "auto" or trainer.is_deepspeed_enabled:
        dtype = probe.dtype
    trainer.add_callback(ProbeCallback(trainer, probe, folder, chat, sets, dtype, check))


class ProbeCallback(TrainerCallback):
    """Runs the probe inside training and hands its results to the tracker."""

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
        else:  # resumed: the live weights are those of the checkpoint, whose probe a kill may have cut short
            self.on_save(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._measure(f"step-{state.global_step}", state.global_step)

    def _measure(self, label: str, step: int) -> None:
        import torch

        accelerator, out = self.trainer.accelerator, self.run_dir / "probe" / label
        accelerator.wait_for_everyone()
        with ExitStack() as opened:
            # Training goes on as if nothing had been measured: loading a base draws numbers, with which trl would shuffle the
            # next samples otherwise than a resumed run.
            devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            opened.enter_context(torch.random.fork_rng(devices))
            # trl's vLLM gets the weights before they are gathered for the model that scores.
            llm = opened.enter_context(awake(self.trainer.vllm_generation)) if asks_vllm(self.probe) else None
            model = opened.enter_context(live_model(self.trainer, self.dtype))
            engine: Engine = HfEngine(model, self.chat.tokenizer, self.probe.batch_tokens)
            if llm is not None:
                engine = ColocatedVllm(llm, self.chat.tokenizer, scores=engine)
            shared = SharedEngine(engine, accelerator)
            if accelerator.is_main_process:
                try:
                    folder = resolve(str(self.run_dir / f"checkpoint-{step}")) if step else self.folder
                    info = model_info(folder, self.chat, label, step)
                    run_probe(shared, self.chat, info, self.probe, out, self.sets, self.check)
                except Exception as error:
                    shared.close(error)
                    raise
                shared.close()
            else:
                shared.serve()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the caches of large batches, which training takes in other pieces
        if accelerator.is_main_process:
            compare([self.run_dir], self.run_dir / "probe" / "comparison")
            track_probe(out, self.run_dir)
        # The next step's collectives may be of a group whose time limit is shorter than `ddp_timeout`, DeepSpeed's own.
        accelerator.wait_for_everyone()


class WatchedCallback(TrainerCallback):
    """Stands where watchers measure the run: what they have shown must stay declared in the run that they share."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            declare_figures(Path(args.output_dir))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_save(args, state, control)


# --- One engine on all ranks.

# Requests per rank and round of an engine that makes each by itself: enough that its stragglers weigh little, few enough
# that a kill loses a minute at most.
_ROUND = 1024


class SharedEngine:
    """An engine over all ranks: rank 0 streams, the others `serve` until rank 0 closes.

    Where the engine makes requests in batches, each rank gets one of them at a time.
    """

    def __init__(self, engine: Engine, accelerator: Any) -> None:
        self.engine = engine
        self.name = engine.name
        self.accelerator = accelerator
        self._ranks: int = accelerator.num_processes
        self._failed = False

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """The engine's own on one rank, as in `probe run`; on several, what all of them make in a round."""
        own = self.engine.batches(requests)
        if self._ranks == 1 or all(len(batch) == 1 for batch in own):
            return own
        return [[index for batch in shares for index in batch] for shares in self._rounds(own)]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        if self._ranks == 1:
            yield from self.engine.stream(requests)
        elif requests:
            own = self.engine.batches(requests)
            if all(len(batch) == 1 for batch in own):
                own = list(_pieces([index for batch in own for index in batch], -(-len(own) // _ROUND)))
            for shares in self._rounds(own):
                yield from self._share("stream", requests, shares)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Equal prefixes stay together, so that a rank prefills a context once for all its user turns."""
        if self._ranks == 1:
            yield from self.engine.score(requests)
        elif requests:
            order = sorted(range(len(requests)), key=lambda index: requests[index].prefix_ids)
            yield from self._share("score", requests, list(_pieces(order, self._ranks)))

    def serve(self) -> None:
        """Do this rank's shares until rank 0 closes. Raises NextturnError where rank 0 closes with an error."""
        while self._round() is not None:
            pass

    def close(self, error: Exception | None = None) -> None:
        """Let the other ranks go on, or end them with the error of rank 0."""
        from accelerate.utils import broadcast_object_list

        if error is not None and not isinstance(error, NextturnError):
            error = NextturnError(f"the probe failed; rank 0: {type(error).__name__}: {one_line(error)}")
        if self._ranks > 1 and not self._failed:  # after a failure every rank has left already
            broadcast_object_list([error])

    def _rounds(self, batches: list[list[int]]) -> Iterator[list[list[int]]]:
        """One share for each rank, round after round: a batch each, and even parts of what is left at the end."""
        whole = len(batches) // self._ranks * self._ranks
        for start in range(0, whole, self._ranks):
            yield batches[start : start + self._ranks]
        if rest := [index for batch in batches[whole:] for index in batch]:
            yield list(_pieces(rest, self._ranks))

    def _share(self, method: str, requests: Sequence[Any], shares: list[list[int]]) -> Iterator[Any]:
        """A round of `method` on all ranks, each with the requests at these indices."""
        order = [index for share in shares for index in share]
        for position, done in self._round(method, [[requests[index] for index in share] for share in shares]):
            yield order[position], done

    def _round(self, method: str | None = None, shares: list[list[Any]] | None = None) -> Any:
        """Does one broadcast round; gives (position, completion or score) pairs, or None when rank 0 has closed.

        Rank 0 says which method of the engine and what requests for each rank; the others call it bare and are told.
        """
        from accelerate.utils import broadcast_object_list, gather_object

        work = broadcast_object_list([(method, shares) if method else None])[0]
        if work is None:
            return None
        if isinstance(work, NextturnError):
            raise work
        method, shares = work
        rank = self.accelerator.process_index
        first = sum(len(share) for share in shares[:rank])
        try:
            own: Any = [(first + index, done) for index, done in getattr(self.engine, method)(shares[rank])]
        except Exception as error:  # noqa: BLE001 - told to every rank below, so that none waits for one that is gone
            own = [(None, f"rank {rank}: {type(error).__name__}: {error}")]
        found = gather_object(own)
        failed = [what for position, what in found if position is None]
        if failed:
            self._failed = True
            raise NextturnError(f"the probe failed; {failed[0]}")
        return found


def _pieces(indices: Sequence[int], number: int) -> Iterator[list[int]]:
    """`number` even parts, in order."""
    for part in range(number):
        yield list(indices[len(indices) * part // number : len(indices) * (part + 1) // number])
