"""One readable line a step in the terminal; trl's fifty figures go to the tracker and to trainer_state.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def step_line(step: int, most: int, logs: Mapping[str, Any]) -> str:
    """Such as "step 3/30  reward 0.41 (accuracy 0.31, efficiency 0.52)  no variance in 25% of groups  124 tokens"."""
    parts = ", ".join(
        f"{name.removeprefix('reward/')} {value:.2f}"
        for name, value in sorted(logs.items())
        if name.startswith("reward/") and name.count("/") == 1 and name != "reward/none" and value is not None
    )
    reward = logs.get("reward")
    shown = [
        f"step {step}/{most}",
        f"reward {reward:.3f} ({parts})" if reward is not None else "no sample has a reward",
        _share(logs, "reward/none", "{} of samples without a reward"),
        _share(logs, "groups/flat", "no variance in {} of groups"),
        f"{logs['watch/tokens']:.0f} tokens" if logs.get("watch/tokens") is not None else "",
        _share(logs, "watch/truncated", "{} cut"),
        f"KL {logs['kl']:.2g}" if logs.get("kl") is not None else "",
        f"loss {logs['loss']:.4f}",
        f"{logs['step_time']:.1f} s" if logs.get("step_time") is not None else "",
    ]
    return "  ".join(part for part in shown if part)


def _share(logs: Mapping[str, Any], name: str, wording: str) -> str:
    value = logs.get(name)
    return wording.format(f"{value:.0%}") if value else ""


def print_step_lines(trainer: Any) -> None:
    """Has `trainer` print step lines, above its progress bar where it shows one, in place of everything it logs."""
    from transformers import PrinterCallback, ProgressCallback

    def text(state: Any, logs: Mapping[str, Any]) -> str:
        return step_line(state.global_step, state.max_steps, logs) if "loss" in logs else str(dict(logs))

    class ShortProgress(ProgressCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if state.is_world_process_zero and self.training_bar is not None and logs:
                self.training_bar.write(text(state, logs))

    class ShortPrinter(PrinterCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if state.is_local_process_zero and logs:
                print(text(state, logs), flush=True)

    for long, short in ((ProgressCallback, ShortProgress), (PrinterCallback, ShortPrinter)):
        if trainer.pop_callback(long) is not None:
            trainer.add_callback(short())
