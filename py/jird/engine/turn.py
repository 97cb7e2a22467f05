"""One exchange of a conversation: what was asked, the ids that went in and came out."""

from __future__ import annotations

from dataclasses import dataclass, field

from .generate import GenerateOptions


@dataclass
class Turn:
    """Grows while its answer is written: ids, text, draw, then finish.

    parent     the turn it follows; None = the first
    messages   what was asked: chat messages, the last of them the person's (or a tool's)
    dropped    turns before it that its prompt leaves out
    draw       number of the next draw
    finish     "" (not ended: still running, or lost on the way) | "stop" | "length" | "abort"
    """

    id: int
    parent: int | None
    messages: tuple[dict, ...]
    prompt_ids: tuple[int, ...]
    dropped: tuple[int, ...]
    options: GenerateOptions
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    draw: int = 0
