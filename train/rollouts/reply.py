"""`reply` mode: one assistant turn is trained, and played on from to see what it leads to.

The look-ahead is CollabLLM's multiturn-aware reward (arXiv 2502.00640, section 3): a reply is worth what the
conversation becomes after it, with the policy of now as the assistant.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe.engines.base import Completion, item_seed
from train.rollouts.settings import RolloutSection
from train.rollouts.simulators import Simulator
from train.rollouts.talks import Sample, Speaking, Start, Talk, own_user_turns, played, users_speak


def play_replies(
    starts: Sequence[Start],
    speaking: Speaking,
    simulator: Simulator,
    rollout: RolloutSection,
    limit: int,
    wants_user_turns: bool,
) -> list[Sample]:
    """One sample for each start. All conversations take each step together: the policy is asked 1 + `window` times.

    Args:
        limit: tokens of the trained reply at most.
    """
    limit = min(limit, rollout.max_turn_tokens)
    replies = speaking.complete([speaking.request(one.prompt_ids, limit, item_seed(one.seed, 0)) for one in starts])
    talks = [_talks(start, made, speaking, simulator, rollout) for start, made in zip(starts, replies, strict=True)]
    user_turns = own_user_turns([own[0] for own in talks], speaking) if wants_user_turns else [()] * len(talks)
    for step in range(1, rollout.window + 1):
        going_on = users_speak((talk for own in talks for talk in own), simulator)
        asked = [
            speaking.request(
                speaking.chat.prompt_ids(talk.messages), rollout.max_turn_tokens, item_seed(talk.seed, step)
            )
            for talk in going_on
        ]
        for talk, made in zip(going_on, speaking.complete(asked), strict=True):
            talk.assistant(made, speaking.whole(made))
    return [
        Sample(
            start.prompt_ids,
            made.ids,
            (1,) * len(made.ids),
            made.log_probs,
            played(start, own, len(made.ids), not speaking.whole(made), turns),
        )
        for start, made, own, turns in zip(starts, replies, talks, user_turns, strict=True)
    ]


def _talks(
    start: Start, made: Completion, speaking: Speaking, simulator: Simulator, rollout: RolloutSection
) -> list[Talk]:
    """The look-aheads of a reply; one where nothing is left to chance, since nobody goes on."""
    whole = speaking.whole(made)
    talks = []
    for number in range(rollout.samples if rollout.window and whole else 1):
        seed = item_seed(start.seed, "look", number)
        talk = Talk(simulator.user(start.row, item_seed(seed, "user")), list(start.messages), seed)
        talk.assistant(made, whole)
        talks.append(talk)
    return talks
