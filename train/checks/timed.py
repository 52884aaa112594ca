"""Speed and peak memory of a training script's own run, beside what its dry run would have estimated."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from train.checks.speed import TERA, peak_tflops, training_flops

WARM_UP = 2  # steps that are not timed: kernels are chosen and compiled in them


class Timed:
    """Hangs a clock onto the trainer that the script makes; the script itself is left as it is."""

    def __init__(self) -> None:
        from transformers import TrainerCallback

        import train.steps as steps

        outer, equip = self, steps.equip
        self.trainer: Any = None
        self.marks: list[tuple[float, int]] = []

        class Clock(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                import torch

                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                outer.marks.append((time.monotonic(), outer.tokens()))

        def timed(trainer: Any, *rest: Any) -> None:
            equip(trainer, *rest)
            outer.trainer = trainer
            trainer.add_callback(Clock())

        steps.equip = timed  # type: ignore[assignment]

    def tokens(self) -> int:
        """SFT counts what goes in, padding included; GRPO prompts and completions."""
        return int(self.trainer.state.num_input_tokens_seen or getattr(self.trainer.state, "num_tokens", 0))

    def figures(self, rows: int, length: int, completion: int | None) -> dict[str, Any]:
        import torch

        from train.memory import GIB

        warm = min(WARM_UP, len(self.marks) - 2)
        (begun, before), (ended, after) = self.marks[warm], self.marks[-1]
        steps, seconds = len(self.marks) - 1 - warm, ended - begun
        losses = [row["loss"] for row in self.trainer.state.log_history if "loss" in row]
        speed = (after - before or steps * rows * length) / seconds
        model, on_gpu = self.trainer.model, torch.cuda.is_available()
        found: dict[str, Any] = {"loss": losses[-1] if losses else None, "seconds_a_step": round(seconds / steps, 3)}
        found |= {
            "tokens_per_second": round(speed),
            "estimated_gib": round(self._estimate(rows, length, completion) / GIB, 2),
        }
        if not on_gpu:
            return found
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
        if completion is None:
            parameters = sum(p.numel() for p in model.parameters())
            flops = speed * training_flops(model.config, parameters, length, lora=True)
            peak = peak_tflops(torch.cuda.get_device_name())
            found["model_tflops"] = round(flops / TERA, 1)
            found["share_of_peak"] = round(flops / TERA / peak, 3) if peak else "unknown chip"
        return found

    def _estimate(self, rows: int, length: int, completion: int | None) -> float:
        """What a dry run of the same recipe says."""
        from train.memory import memory_parts, size_of
        from train.recipe import LoraSection, ModelSection
        from train.step_memory import Step, step_memory

        args = self.trainer.args
        folder = Path(self.trainer.model.get_base_model().config._name_or_path)
        size = size_of(ModelSection(name=str(folder), lora=LoraSection()), folder)
        given = {"gradient_accumulation_steps": args.gradient_accumulation_steps, "bf16": args.bf16}
        given["gradient_checkpointing"] = args.gradient_checkpointing
        step = step_memory(size.make, Step(rows, length, completion, args.use_cpu, given))
        return sum(memory_parts(size, step, given, stage=0, ranks=1).values())
