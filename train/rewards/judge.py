"""Interactivity by judge: a model reads whole conversations and gives each a verdict from 1 to 5, taken as 0 to 1.

Prompt and reading are those of the dialogue builder, so that data and reward mean the same by it. All verdicts of a step
are asked for at once; a rate limit is waited out and a failing request tried again as everywhere (probe.servers). Equal
conversations are judged once: the judge's own noise would otherwise tell them apart.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from data_builders.dialogue.pool import Pool
from data_builders.dialogue.prompts import judge_prompt
from data_builders.dialogue.scoring import from_verdict, read_judge
from data_builders.dialogue.settings import RoleSection
from data_builders.dialogue.speaker import Ask, Flow, Results, Speaker
from data_builders.dialogue.speakers import open_speakers
from probe.engines.base import item_seed
from probe.errors import EngineError
from probe.sets import Message
from probe.timelimit import TIMEOUT
from train.played import Played
from train.rewards.part import Part, mean_part, nothing_played

TRIES = 3
"""A verdict that cannot be read is asked for again, each time with another seed."""
_AGAIN_AT_LEAST = 0.5
UNREACHABLE = "judge_unreachable"
Conversation = tuple[Message, ...]


class InteractivityJudge:
    """Asks servers; nothing is sent before the first verdict is wanted.

    Raises:
        BadInput: the server's section cannot be used.
    """

    def __init__(self, section: RoleSection, seed: int, limit_s: float) -> None:
        self._section, self._seed = section, seed
        self._speakers = open_speakers({"judge": section}, seed)
        self._pool: Pool[Part] = Pool({"judge": _Timed(self._speakers.by_role["judge"], limit_s)}, at_once=10**6)

    def score(self, played: Sequence[Played]) -> list[Part]:
        """One part for each sample: the mean over its conversations that have a verdict."""
        verdicts = self._verdicts([conversation for one in played for conversation in one.conversations])
        return [
            mean_part([verdicts[_key(conversation)] for conversation in one.conversations])
            if one.conversations
            else nothing_played(one)
            for one in played
        ]

    def close(self) -> None:
        self._speakers.close()

    def _verdicts(self, conversations: Sequence[Conversation]) -> dict[tuple[str, ...], Part]:
        """By text; whatever breaks the asking off, those that came are kept."""
        asked = {_key(conversation): conversation for conversation in conversations}
        keys = list(asked)
        verdicts: dict[tuple[str, ...], Part] = {}
        missing = ""
        try:
            for number, part in self._pool.run(enumerate(self._flow(conversation) for conversation in asked.values())):
                verdicts[keys[number]] = part
        except TimeoutError:
            missing = f"judge_{TIMEOUT}"
        except EngineError as error:  # not raised: the other processes would wait for this one for ever
            missing = f"{UNREACHABLE}: {error}"
        return {key: verdicts.get(key) or Part(None, missing) for key in keys}

    def _flow(self, conversation: Conversation) -> Flow[Part]:
        section, slip = self._section, ""
        prompt = judge_prompt(conversation)
        for attempt in range(TRIES):
            seed = item_seed(self._seed, "judge", attempt, *_key(conversation))
            temperature = max(section.temperature, _AGAIN_AT_LEAST) if attempt else section.temperature
            (said,) = yield [Ask("judge", prompt, seed, temperature, section.max_tokens)]
            if said.failure:  # its server was tried again already
                return Part(None, f"judge_{said.failure}" + (f": {said.detail}" if said.detail else ""))
            heard = read_judge(said)
            if heard.score is not None:
                return Part(from_verdict(heard.score))
            slip = heard.slip
        return Part(None, f"judge_{slip}")


class _Timed:
    """A speaker whose listener gets a TimeoutError once `limit_s` seconds have passed since `begin`."""

    batched = False

    def __init__(self, speaker: Speaker, limit_s: float) -> None:
        self._speaker, self._limit_s = speaker, limit_s
        self.submit, self.work = speaker.submit, speaker.work

    def begin(self, folder: Path | None, results: Results) -> None:
        self._speaker.begin(folder, results)
        self._timer = threading.Timer(self._limit_s, results.put, [TimeoutError()])
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        self._timer.cancel()
        self._speaker.end()


def _key(conversation: Conversation) -> tuple[str, ...]:
    return tuple(text for message in conversation for text in (message["role"], message["content"]))
