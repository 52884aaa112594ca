"""What happens where samples have no reward: a few are left out, many stop the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

_SHOWN = 3
_WHAT_TO_DO = "Mend what is named, or leave the part out of reward.required; the same command then goes on from the last checkpoint"


def check_failures(samples: Sequence[tuple[float | None, Mapping[str, str]]], limit: float) -> str | None:
    """Why a step of these samples, (value, reasons) from all processes, has to stop the run; None where it has not.

    The same on every process that is given the same samples, so that all stop together.
    """
    lost = [reasons for value, reasons in samples if value is None]
    if len(lost) <= limit * len(samples):
        return None
    counts = Counter(f"{part} {reason}" for reasons in lost for part, reason in sorted(reasons.items()))
    named = "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(_SHOWN))
    more = f"; and {len(counts) - _SHOWN} other reasons" if len(counts) > _SHOWN else ""
    return (
        f"{len(lost)} of {len(samples)} samples have no reward ({len(lost) / len(samples):.0%}, reward.max_failed allows "
        f"{limit:.0%}): {named}{more}. {_WHAT_TO_DO}"
    )
