"""Efficiency: fewer assistant tokens for the same result, without a floor to lie on.

`e / (e + tokens)` over all assistant tokens from the first trained turn on: 1 for none, a half at `e`, strictly
falling for ever. CollabLLM (arXiv 2502.00640, section 4) subtracts min(5e-4 * tokens, 1), which is flat from 2,000 tokens
on, while its MATH chats average 2,400 to 3,400: most replies were told apart by nothing.
"""

from __future__ import annotations

from train.played import Played
from train.rewards.part import Part, mean_part, nothing_played


def efficiency(played: Played, efficient_tokens: int) -> Part:
    """The mean over the sample's conversations."""
    if not played.conversations:
        return nothing_played(played)
    return mean_part([Part(efficient_tokens / (efficient_tokens + tokens)) for tokens in played.simulated_tokens])
