"""Conversations with a language model in either role, after CollabLLM (arXiv 2502.00640).

The *assistant* sees the chat alone. The *user simulator* sees the whole problem, plays a *persona* and gives away what
it holds back (the *hidden* values) only little by little. At each assistant turn several *candidates* are made; each is
judged by its *look-ahead*: some simulated turns (*window*), several times over (*samples*), scored in *parts* (accuracy,
interactivity, efficiency). The best candidate goes on with the conversation, and all of them are kept.

Texts travel as tagged plain text, never inside JSON, which would break LaTeX.
"""

from __future__ import annotations
