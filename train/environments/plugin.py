"""The classes by which verifiers 0.4 runs the tasks: data, task, task set, the conversation with the scripted user, and the chat.

Imported only where verifiers is installed: pip install 'nextturn[verifiers]'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import httpx2
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from nextturn.probe.data.messages import Message, after_thinking
from nextturn.probe.questions.simulation import PromptRow
from nextturn.train.environments import tasks


class PromptData(vf.TaskData):
    """A task as it is stored and sent: the row that the user and the reward know. The model sees the prompt alone."""

    row: PromptRow


class PromptTask(vf.Task[PromptData]):
    """A task with its user and its reward."""

    def conversation(self, trace: vf.Trace) -> list[Message]:
        """Return the prompt and what was said after it, without thoughts and the system message."""
        prompt = self.data.row.prompt
        said = [message for message in trace.messages if message.role in ("user", "assistant")]
        texts = [(message.role, (after_thinking(str(message.content or "")) or "").strip()) for message in said]
        start = sum(message["role"] != "system" for message in prompt)
        return [*prompt, *({"role": role, "content": text} for role, text in texts[start:])]

    def user_turn(self, trace: vf.Trace) -> str | None:
        """Return the user's next message, or None to end the conversation."""
        return tasks.user_turn(self.data.row, self.conversation(trace))

    @vf.reward  # type: ignore[untyped-decorator]
    async def reward(self, trace: vf.Trace) -> float:
        """Return nextturn's reward of the conversation, and record its parts as metrics."""
        value, parts = await asyncio.to_thread(
            tasks.reward, self.data.row, self.conversation(trace), trace.num_output_tokens, trace.is_truncated
        )
        trace.record_metrics(parts)
        return value


class PromptsConfig(vf.TasksetConfig):
    """The options `--env.taskset.*`."""

    path: str = ""
    """A build of `nextturn data`, a file of prompts or problems, or a data set of the hub; default: the packaged problems."""


class Prompts(vf.Taskset[PromptTask, PromptsConfig]):
    """The tasks of one environment."""

    kind: ClassVar[tasks.Kind]

    def load(self) -> Iterator[PromptTask]:
        """Yield the tasks."""
        for row in tasks.prompts(self.kind, self.config.path):
            prompt = [dict(message) for message in row.prompt]
            data = PromptData(id=row.id, prompt=prompt, system_prompt=tasks.INSTRUCTION, row=row)
            yield PromptTask(data, self.config.task)


class ConversationConfig(vf.EnvConfig):
    """The options `--env.*`. Nothing is run for the model, so no sandbox is needed."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class Conversation(vf.Env[ConversationConfig]):
    """The model and the scripted user in turn, until the user ends the conversation or a limit cuts a reply."""

    async def run(self, task: PromptTask, agents: vf.Agents) -> None:
        """Run one conversation."""
        async with agents.agent.interaction(task) as chat:
            turn = await chat.turn()
            while not (turn.terminated or chat.trace.is_truncated):
                said = await asyncio.to_thread(task.user_turn, chat.trace)
                if said is None:
                    return
                turn = await chat.turn(said)


class Chat(vf.Harness[vf.HarnessConfig]):
    """One chat completion for each turn, requested by this process: no tools, and no program to install and start."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Mapping[str, str], data: vf.TaskData
    ) -> vf.ProgramResult:  # fmt: skip
        """Request the next reply through verifiers' endpoint, which records it."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] * bool(system) + [message_to_wire(each) for each in prompt]
        body = {"model": ctx.model, "messages": messages}
        async with httpx2.AsyncClient(timeout=None) as client:
            url, headers = f"{endpoint}/chat/completions", {"Authorization": f"Bearer {secret}"}
            reply = await client.post(url, json=body, headers=headers)
        return vf.ProgramResult(int(reply.is_error), "", reply.text if reply.is_error else "")
