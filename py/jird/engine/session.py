"""Session: a conversation as a tree of turns on one engine; every answer computes only what the cache does not hold.

Turns keep their token ids (join.py), so the next prompt begins with all that slot 0 of the engine has seen, and editing,
regenerating and branching keep what they share. Several sessions may take turns on one engine: the cache then serves
whoever shares a prefix with what it holds, and nothing is wrong otherwise.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Any, AsyncIterator, Mapping, Sequence

from ..errors import BadRequest, ContextExceeded, shown
from ..text.chat import encode_chat
from .engine import Engine
from .generate import AnswerText, GenerateOptions, Piece, Result, end_ids, generate_text, request_of
from .join import content_ids, joined
from .journal import VERSION, model_mark, read_turns, turn_record
from .options import Cancel
from .turn import Turn

ON_FULL = ("stop", "drop_oldest")
RESERVE = 128
MAX_RENDERED = 128  # conversations whose template ids are remembered


@dataclass(frozen=True)
class Answer:
    """The end of an answer. dropped: turns that its prompt left out, because the context is full."""

    turn: int
    result: Result
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class Prepared:
    """What an answer would run on, known before it runs. prompt_ids; dropped turns; room: ids that the answer can have."""

    prompt_ids: tuple[int, ...]
    dropped: tuple[int, ...]
    room: int


class Session:
    """A conversation. `turns` by id, `head` the turn that the next question follows.

    system     the system message; "" = none (the template may have its own)
    on_full    when prompt and reserve pass the context: "stop" raises ContextExceeded before anything runs, "drop_oldest"
               leaves out as few of the oldest turns as needed, never the system message, and says which
    reserve    ids kept free for the answer (at most a quarter of the context, and never more than max_new)
    variables  for the template: tools, documents, enable_thinking, ...
    started    the time that templates see: one for the whole conversation, or each minute would give another prefix
    Raises: BadRequest
    """

    def __init__(self, engine: Engine, system: str = "", on_full: str = "stop", reserve: int = RESERVE,
                 variables: Mapping[str, Any] | None = None, started: datetime.datetime | None = None):
        if on_full not in ON_FULL:
            raise BadRequest(f"on_full is {shown(on_full)}; known: {', '.join(ON_FULL)}")
        if type(reserve) is not int or reserve < 1:
            raise BadRequest(f"reserve is {shown(reserve)}; it must be a whole number, at least 1")
        if not isinstance(system, str):
            raise BadRequest(f"the system message must be text, got {shown(system)}")
        self.engine, self.system, self.on_full, self.reserve = engine, system, on_full, reserve
        self.variables = dict(variables or {})
        self.started = started or datetime.datetime.now().replace(microsecond=0)
        self.turns: dict[int, Turn] = {}
        self.head: int | None = None
        self._rendered: dict[tuple[int, ...], list[int]] = {}
        self._mark = model_mark(engine)

    # ---- the tree

    def path(self, turn: int | None = None) -> list[Turn]:
        """The turns from the first to `turn` (None = head). Raises: BadRequest for a turn that is not there."""
        turn, found = self.head if turn is None else turn, []
        while turn is not None:
            found.append(self._turn(turn))
            turn = found[-1].parent
        return found[::-1]

    def children(self, turn: int | None) -> list[int]:
        """Turns that follow `turn` (None: those that begin the conversation): the versions that editing and branching made."""
        return [t.id for t in self.turns.values() if t.parent == turn]

    def select(self, turn: int | None) -> None:
        """The next question follows `turn` (None: begins anew): going back and branching."""
        self.head = None if turn is None else self._turn(turn).id

    @property
    def context_used(self) -> int:
        """Tokens of the prompt and answer of the head; `engine.options.context` is what fits."""
        return 0 if self.head is None else len(self.turns[self.head].prompt_ids) + len(self.turns[self.head].ids)

    # ---- answers

    def prepare(self, asked: Any, options: GenerateOptions = GenerateOptions(), parent: int | None = None) -> Prepared:
        """What asking after `parent` (None = head) would run on; nothing runs.

        Raises: BadRequest for messages, ContextExceeded by the policy
        """
        return self._prepare(_messages(asked), options, self.path(parent))[0]

    async def ask(self, asked: Any, options: GenerateOptions = GenerateOptions(), cancel: Cancel | None = None) -> AsyncIterator[Piece | Answer]:
        """Answers a text or chat message(s) after the head, which moves to the new turn: Pieces, then one Answer.

        The turn is there from the start; what ends the run on the way leaves it with the ids so far and finish "".
        Raises: BadRequest, ContextExceeded before anything runs, and then no turn is made; otherwise as generate_text
        """
        async with aclosing(self._ask(_messages(asked), options, cancel, self.path())) as events:
            async for event in events:
                yield event

    async def edit(self, turn: int, asked: Any, options: GenerateOptions | None = None, cancel: Cancel | None = None) -> AsyncIterator[Piece | Answer]:
        """Asks something else in the place of `turn`, which stays beside it. options: None = that turn's. Raises: as ask."""
        old = self._turn(turn)
        async with aclosing(self._ask(_messages(asked), options or old.options, cancel, self.path(turn)[:-1])) as events:
            async for event in events:
                yield event

    async def regenerate(self, turn: int | None = None, options: GenerateOptions | None = None, cancel: Cancel | None = None) -> AsyncIterator[Piece | Answer]:
        """Answers the question of `turn` (None = head) once more, beside the first answer. Another answer takes options with another seed.

        Raises: as ask
        """
        old = self._asked(turn)
        async with aclosing(self.edit(old.id, old.messages, options, cancel)) as events:
            async for event in events:
                yield event

    async def continue_answer(self, turn: int | None = None, cancel: Cancel | None = None) -> AsyncIterator[Piece | Answer]:
        """Goes on with an answer that has not ended or was aborted: the cache is made again from prompt and ids so far, and the ids that
        follow are those of an undisturbed run, sampled ones too. Pieces follow the turn's text as it is after this call began.

        Raises: BadRequest when the answer has ended or other turns follow it; otherwise as generate_text
        """
        t = self._asked(turn)
        if t.finish not in ("", "abort"):
            raise BadRequest(f"the answer of turn {t.id} has ended ({t.finish}); there is nothing to continue")
        if not t.prompt_ids:
            raise BadRequest(f"the answer of turn {t.id} was begun by another model; regenerate it instead")
        if self.children(t.id):
            raise BadRequest(f"turn {t.id} is followed by others; regenerate it instead")
        self.head = t.id
        async with aclosing(self._answer(t, cancel)) as events:
            async for event in events:
                yield event

    async def _ask(self, messages: tuple[dict, ...], options: GenerateOptions, cancel: Cancel | None, path: list[Turn]) -> AsyncIterator[Piece | Answer]:
        prepared, rendered = self._prepare(messages, options, path)
        self.engine.check(request_of(self.engine, prepared.prompt_ids, options))
        AnswerText(self.engine, options.stop)
        turn = Turn(max(self.turns, default=-1) + 1, path[-1].id if path else None, messages, prepared.prompt_ids, prepared.dropped, options)
        before, self.head, self.turns[turn.id] = self.head, turn.id, turn
        key = (*(t.id for t in path if t.id not in prepared.dropped), turn.id)
        self._remember(key, rendered)
        try:
            async with aclosing(self._answer(turn, cancel)) as events:
                async for event in events:
                    yield event
        except BadRequest:
            if not turn.ids:  # refused: the engine is at work for someone else
                del self.turns[turn.id], self._rendered[key]
                self.head = before
            raise

    async def _answer(self, turn: Turn, cancel: Cancel | None) -> AsyncIterator[Piece | Answer]:
        """Runs a turn's answer from where it stands, noting every id as it comes."""
        turn.finish = ""
        turn.text = AnswerText(self.engine, turn.options.stop, turn.ids, end_ids(self.engine, turn.options)).text
        async with aclosing(generate_text(self.engine, turn.prompt_ids, turn.options, cancel, tuple(turn.ids), turn.draw)) as events:
            async for event in events:
                if isinstance(event, Result):
                    turn.text, turn.finish = event.text, event.finish_reason
                    yield Answer(turn.id, event, turn.dropped)
                    return
                if event.id >= 0:
                    turn.ids.append(event.id)
                    turn.draw += 1
                turn.text += event.text
                yield event

    # ---- prompts

    def _prepare(self, messages: tuple[dict, ...], options: GenerateOptions, path: list[Turn]) -> tuple[Prepared, list[int]]:
        """The prompt that fits, and the template's ids of it. What the last turn left out stays left out: its prefix stands in the cache."""
        context = self.engine.options.context
        reserve = max(1, min(options.max_new, self.reserve, context // 4))
        gone = set(path[-1].dropped) if path else set()
        kept = [t for t in path if t.id not in gone]

        @cache
        def without(count: int) -> tuple[list[int], list[int]]:
            return self._joined(kept[count:], messages)

        def fits(count: int) -> bool:
            return context - len(without(count)[0]) + 1 >= reserve

        count = 0
        if not fits(0) and self.on_full == "drop_oldest":
            count = bisect_left(range(len(kept)), True, lo=min(1, len(kept)), key=fits)
        ids, rendered = without(count)
        if not fits(count):
            what = "conversation" if kept[count:] else "question"
            raise ContextExceeded(f"the {what} has {len(ids)} tokens and the answer needs {reserve}; the context holds {context}")
        gone |= {t.id for t in kept[:count]}
        return Prepared(tuple(ids), tuple(t.id for t in path if t.id in gone), context - len(ids) + 1), rendered

    def _joined(self, kept: Sequence[Turn], messages: Sequence[dict]) -> tuple[list[int], list[int]]:
        """(prompt ids with the answers' own ids, the template's ids)."""
        rendered = self._encode(kept, messages)
        answers = []
        for n, turn in enumerate(kept):
            own = content_ids(self.engine.tokenizer, self.engine.spec, turn.ids, turn.text)
            if own is not None:
                answers.append((self._rendered_until(kept[:n], turn), own))
        return joined(self.engine.tokenizer, rendered, answers), rendered

    def _rendered_until(self, before: Sequence[Turn], turn: Turn) -> list[int]:
        """The template's ids up to where the turn's answer begins."""
        key = (*(t.id for t in before), turn.id)
        if key not in self._rendered:
            self._remember(key, self._encode(before, turn.messages))
        return self._rendered[key]

    def _remember(self, key: tuple[int, ...], rendered: list[int]) -> None:
        while len(self._rendered) >= MAX_RENDERED:
            del self._rendered[next(iter(self._rendered))]
        self._rendered[key] = rendered

    def _encode(self, before: Sequence[Turn], messages: Sequence[dict]) -> list[int]:
        said = [{"role": "system", "content": self.system}] if self.system else []
        for turn in before:
            said += [*turn.messages, {"role": "assistant", "content": turn.text}]
        return encode_chat(self.engine.tokenizer, self.engine.spec, [*said, *messages], clock=lambda: self.started, **self.variables)

    # ---- the journal

    def journal(self) -> dict[str, Any]:
        """The whole conversation as plain JSON, the answer being written too; `turn_journal` is one turn of it."""
        return {"version": VERSION, "model": self._mark, "system": self.system, "on_full": self.on_full, "reserve": self.reserve, "variables": self.variables,
                "started": self.started.isoformat(), "head": self.head, "turns": [turn_record(t) for t in self.turns.values()]}

    def turn_journal(self, turn: int | None = None) -> dict[str, Any]:
        """The record of one turn (None = head). While it is answered a writer may append Piece.id (>= 0) to its ids and count draw up."""
        return turn_record(self._asked(turn))

    @classmethod
    def restore(cls, engine: Engine, journal: Any) -> Session:
        """The conversation of a journal on an engine, a new one or the same. Nothing runs.

        Another model than the journal's keeps texts and forgets ids; a half answer then counts as aborted and cannot go on.
        Raises: BadRequest for what is no journal
        """
        turns = read_turns(journal)
        try:
            started = datetime.datetime.fromisoformat(journal["started"])
            session = cls(engine, journal["system"], journal["on_full"], journal["reserve"], dict(journal["variables"]), started)
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"the journal cannot be read: {type(error).__name__} {error}") from error
        session.turns, session.head = turns, journal["head"]
        is_same = journal.get("model") == session._mark
        for turn in turns.values():
            if not is_same:
                turn.ids, turn.prompt_ids, turn.dropped, turn.finish = [], (), (), turn.finish or "abort"
            elif not turn.finish:
                turn.text = AnswerText(engine, turn.options.stop, turn.ids, end_ids(engine, turn.options)).text
        return session

    # ---- looking up

    def _turn(self, turn: int) -> Turn:
        if turn not in self.turns:
            raise BadRequest(f"turn {shown(turn)} is not there; the conversation has {len(self.turns)} turns")
        return self.turns[turn]

    def _asked(self, turn: int | None) -> Turn:
        """A turn, the head where none is named. Raises: BadRequest before the first question."""
        if turn is None and self.head is None:
            raise BadRequest("nothing has been asked yet")
        return self._turn(self.head if turn is None else turn)


def _messages(asked: Any) -> tuple[dict, ...]:
    """A text is a person's message; a message or several stand as they are (chat.checked looks at them)."""
    if isinstance(asked, str):
        return ({"role": "user", "content": asked},)
    if isinstance(asked, Mapping):
        return (dict(asked),)
    if not isinstance(asked, (list, tuple)) or not asked or not all(isinstance(m, Mapping) for m in asked):
        raise BadRequest(f"a question is a text, a message or a list of messages, got {shown(asked)}")
    return tuple(dict(m) for m in asked)
