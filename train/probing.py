"""Probes the model in training: the base before step 1, and every checkpoint right after it is saved.

All ranks share the work. Rank 0 runs the probe as `probe run` would; its engine sends each batch of prompts to
all ranks, every rank completes its share on the live weights (gathered under ZeRO-3), and rank 0 collects.
The results lie in RUN_DIR/probe/{base,step-N}, the comparison of all of them in RUN_DIR/probe/comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from probe.chat import Chat
from probe.compare import compare
from probe.engines.base import Completion, Engine, Request, ScoreRequest
from probe.engines.hf import HfEngine, live_model
from probe.errors import BadInput, NextturnError
from probe.models import ModelFolder, resolve
from probe.run import LoadedSet, model_info, run_probe
from probe.settings import ProbeSection
from probe.tracking import declare_figures, tell_probe

# Requests per rank and round: enough to fill batches, few enough that a kill loses little.
_ROUND = 64


class SharedEngine:
    """An engine over all ranks: rank 0 streams, the others `serve` until rank 0 closes."""

    def __init__(self, engine: Engine, accelerator: Any) -> None:
        self.engine = engine
        self.name = engine.name
        self.accelerator = accelerator
        self._failed = False

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        if self.accelerator.num_processes == 1:  # the same batches, and so the same ties, as `probe run`
            return self.engine.batches(requests)
        return self._rounds([request.prompt_ids for request in requests])

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        if self.accelerator.num_processes == 1:
            yield from self.engine.stream(requests)
            return
        for indices in self._rounds([request.prompt_ids for request in requests]):
            for position, completion in self._round("stream", [requests[index] for index in indices]):
                yield indices[position], completion

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        if self.accelerator.num_processes == 1:
            yield from self.engine.score(requests)
            return
        for indices in self._rounds([request.prefix_ids for request in requests]):
            for position, log_p in self._round("score", [requests[index] for index in indices]):
                yield indices[position], log_p

    def serve(self) -> None:
        """Does this rank's shares until rank 0 closes."""
        while self._round() is not None:
            pass

    def close(self) -> None:
        if self.accelerator.num_processes > 1 and not self._failed:  # after a failure every rank has left already
            self._broadcast(None)

    def _rounds(self, prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
        """Equal prompts stay together, so that a rank prefills a context once for all its samples."""
        order = sorted(range(len(prompts)), key=prompts.__getitem__)
        step = _ROUND * self.accelerator.num_processes
        return [order[start : start + step] for start in range(0, len(order), step)]

    def _broadcast(self, work: tuple[str, list[Any]] | None) -> tuple[str, list[Any]] | None:
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([work])[0]

    def _round(self, method: str | None = None, requests: list[Any] | None = None) -> Any:
        """Does one broadcast list; gives (position, completion or score) pairs, or None when rank 0 has closed.

        Rank 0 says which method of the engine and what requests; the others call it bare and are told.
        """
        from accelerate.utils import gather_object

        work = self._broadcast((method, requests or []) if method else None)
        if work is None:
            return None
        method, shared = work
        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        first, last = len(shared) * rank // ranks, len(shared) * (rank + 1) // ranks
        try:
            own: Any = [(first + index, done) for index, done in getattr(self.engine, method)(shared[first:last])]
        except Exception as error:  # noqa: BLE001 - told to every rank below, so that none waits for one that is gone
            own = [(None, f"rank {rank}: {type(error).__name__}: {error}")]
        found = gather_object(own)
        failed = [what for position, what in found if position is None]
        if failed:
            self._failed = True
            raise NextturnError(f"the probe failed; {failed[0]}")
        return found


class ProbeCallback(TrainerCallback):
    """Runs the probe inside training and hands its results to the tracker.

    Args:
        trainer: its live model is measured.
        folder: the folder of the base model.
        sets: what is asked, read before training starts so that a missing set stops nothing later.
    """

    def __init__(
        self, trainer: Any, folder: ModelFolder, chat: Chat, probe: ProbeSection, sets: Sequence[LoadedSet]
    ) -> None:
        self.trainer, self.folder, self.chat, self.probe, self.sets = trainer, folder, chat, probe, sets
        self.run_dir = Path(trainer.args.output_dir)
        if probe.dtype != "auto" and trainer.is_deepspeed_enabled:
            raise BadInput(
                f"probe.dtype: {probe.dtype}, wanted auto: DeepSpeed's live weights are measured as they are"
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._measure("base", 0, self.folder)
        else:  # resumed: the live weights are those of the checkpoint, whose probe a kill may have cut short
            self._measure_step(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._measure_step(state.global_step)

    def _measure_step(self, step: int) -> None:
        self.trainer.accelerator.wait_for_everyone()
        self._measure(f"step-{step}", step, resolve(str(self.run_dir / f"checkpoint-{step}")))

    def _measure(self, label: str, step: int, folder: ModelFolder) -> None:
        accelerator = self.trainer.accelerator
        accelerator.wait_for_everyone()
        with live_model(self.trainer, self.probe.dtype) as model:
            shared = SharedEngine(HfEngine(model, self.chat.tokenizer, self.probe.batch_tokens), accelerator)
            if accelerator.is_main_process:
                out = self.run_dir / "probe" / label
                try:
                    info = model_info(folder, self.chat, label, step)
                    run_probe(shared, self.chat, info, self.probe, out, self.sets)
                finally:
                    shared.close()
                compare([self.run_dir], self.run_dir / "probe" / "comparison")
                tell_probe(out, self.run_dir)
            else:
                shared.serve()
        accelerator.wait_for_everyone()


class WatchedCallback(TrainerCallback):
    """Stands where watchers measure the run: what they have shown must stay declared in the run that they share."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            declare_figures(Path(args.output_dir))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            declare_figures(Path(args.output_dir))
