"""Rewards on the assistant's turns: parts, each in a file of its own, and one number put together from them."""

from train.rewards.failures import check_failures
from train.rewards.part import kind
from train.rewards.scoring import Rewards, Scored

__all__ = ["Rewards", "Scored", "check_failures", "kind"]
