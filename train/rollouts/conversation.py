"""`conversation` mode: whole conversations are trained, each as one sequence, with loss on the policy's tokens alone.

The sequence is what the policy has really seen. Each turn is generated from the ids so far and the ids that the
template puts between two assistant turns (`Chat.continuation_ids`), so that no token is rendered again from text. On
templates that change a turn once it is history (Qwen3.5 drops its think block) that is the `generation` prefix form,
and differs from what inference shows in a later turn; `reply` mode has no such difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from probe.engines.base import Completion, item_seed
from train.rollouts.settings import RolloutSection
from train.rollouts.simulators import Simulator
from train.rollouts.talks import Sample, Speaking, Start, Talk, own_user_turns, played, users_speak


@dataclass
class _Grown(Talk):
    """A conversation with its sequence after the prompt. `mask` is 1 on what the policy has sampled, 0 elsewhere."""

    prompt_ids: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float | None] = field(default_factory=list)

    def own(self, made: Completion) -> None:
        self.ids += made.ids
        self.mask += [1] * len(made.ids)
        self.log_probs += made.log_probs

    def outside(self, ids: Sequence[int], scored: bool) -> None:
        self.ids += ids
        self.mask += [0] * len(ids)
        self.log_probs += [0.0] * len(ids) if scored else []  # as trl fills them; masked before they count


def play_conversations(
    starts: Sequence[Start],
    speaking: Speaking,
    simulator: Simulator,
    rollout: RolloutSection,
    limit: int,
    wants_user_turns: bool,
) -> list[Sample]:
    """One sample for each start. All conversations take each turn together: the policy is asked `max_turns` times.

    A conversation ends with a turn of the policy: when the user ends it, when a turn is cut, after `max_turns`, or
    when another whole turn would not fit. So no turn is ever cut by what was said before it.

    Args:
        limit: tokens of the trained whole at most, what stands between the turns included.
    """
    talks = [_begun(start, simulator) for start in starts]
    for turn in range(rollout.max_turns):
        if turn:
            users_speak(talks, simulator)
            _continue(talks, speaking, room=limit - rollout.max_turn_tokens)
        going_on = [talk for talk in talks if talk.open]
        asked = [
            speaking.request(
                (*talk.prompt_ids, *talk.ids), min(limit, rollout.max_turn_tokens), item_seed(talk.seed, turn)
            )
            for talk in going_on
        ]
        for talk, made in zip(going_on, speaking.complete(asked), strict=True):
            talk.own(made)
            talk.assistant(made, speaking.whole(made))
    turns = own_user_turns(talks, speaking) if wants_user_turns else [()] * len(talks)
    return [
        Sample(
            start.prompt_ids,
            tuple(talk.ids),
            tuple(talk.mask),
            tuple(talk.log_probs),
            played(start, [talk], talk.tokens, talk.ended == "truncated", own),
        )
        for start, talk, own in zip(starts, talks, turns, strict=True)
    ]


def _begun(start: Start, simulator: Simulator) -> _Grown:
    user = simulator.user(start.row, item_seed(start.seed, "user"))
    return _Grown(user, list(start.messages), start.seed, prompt_ids=start.prompt_ids)


def _continue(talks: Sequence[_Grown], speaking: Speaking, room: int) -> None:
    """Adds what stands before the next turn to each open conversation where that leaves room for the turn; ends the
    others without the message that cannot be answered."""
    chat = speaking.chat
    for talk in talks:
        if not talk.open:
            continue
        between = chat.continuation_ids(talk.messages)
        if talk.ids[-1] != chat.turn_end_ids[-1]:  # the model ended its turn with another token than the template does
            between = (*chat.turn_end_ids, *between)
        if len(talk.ids) + len(between) > room:
            talk.messages.pop()
            talk.ended = "limit"
        else:
            talk.outside(between, scored=bool(talk.log_probs))
