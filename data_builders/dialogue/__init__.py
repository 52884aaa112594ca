"""Self-play: conversations that the policy has with itself, or with other models in some roles.

The *assistant* sees the chat alone, and while it speaks a note of what is missing or wrong, which the row does not hold.
The *simulator* plays the user: it knows the problem, a *persona*, a *goal* and what it has told, and no answer. Solving
turns are right answers in the policy's own words; what is withheld is proved to be needed and enough. A *judge* reads the
end. Where it is wanted, several *candidates* of a turn are judged by their *look-ahead* (CollabLLM, arXiv 2502.00640).

Texts travel as tagged plain text, never inside JSON, which would break LaTeX.
"""

from __future__ import annotations
