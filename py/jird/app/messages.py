"""What page and worker say to each other: one frozen dataclass a request and an event, checked on the way in.

A request is the plain object {id, op, args}; the answer is any number of progress and token events and then exactly
one result or error, all with the request's id. Tokens are many, so they cross as the array [id, "token", text, count].
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Mapping

from ..errors import BadRequest, JirdError, shown

CONTEXT = 2048
STORES = ("", "cache", "none")
BENCH_LEGS = ("prefill", "decode", "profile")


@dataclass(frozen=True)
class Init:
    """Open the GPU. limits "default": WebGPU's default limits and no features. store: where weights are kept ("": the best there is)."""

    limits: str = ""
    store: str = ""

    def __post_init__(self):
        _one_of("limits", self.limits, ("", "default"))
        _one_of("store", self.store, STORES)


@dataclass(frozen=True)
class Load:
    """Load a model in place of the one that is there.

    url: a GGUF or safetensors file, a checkpoint folder (ends in "/", `files` names what is in it with sizes), or the
    first of several parts (`parts`). file: a File of the person's instead of a url.
    """

    url: str = ""
    file: Any = None
    name: str = ""
    title: str = ""
    bytes: int = 0
    sha256: str = ""
    files: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    context: int = CONTEXT
    in_flight: int = 0
    window: int = 0

    def __post_init__(self):
        if bool(self.url) == (self.file is not None):
            raise BadRequest("load takes a url or a file, one of the two")
        for name in ("url", "name", "title", "sha256"):
            _text(name, getattr(self, name))
        _whole("context", self.context, 16, 1 << 20)
        _whole("in_flight", self.in_flight, 0, 16)
        _whole("window", self.window, 0, 16)
        _whole("bytes", self.bytes, 0, 1 << 53)
        if not isinstance(self.files, Mapping):
            raise BadRequest(f"files must map file names to sizes, got {shown(self.files)}")
        object.__setattr__(self, "parts", _texts("parts", self.parts))


@dataclass(frozen=True)
class Generate:
    """Answer `messages`, or complete `raw` text or `ids` as they stand. force_ids: feed these instead and say the model's choice at each."""

    messages: tuple = ()
    raw: str | None = None
    ids: tuple[int, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    force_ids: tuple[int, ...] | None = None

    def __post_init__(self):
        given = [bool(self.messages), self.raw is not None, self.ids is not None]
        if sum(given) != 1:
            raise BadRequest("chat takes messages, raw or ids, one of the three, and not empty")
        if self.raw is not None:
            _text("raw", self.raw)
        if not isinstance(self.options, Mapping):
            raise BadRequest(f"options must be an object, got {shown(self.options)}")
        if not isinstance(self.messages, (list, tuple)):
            raise BadRequest(f"messages must be a list, got {shown(self.messages)}")
        for name in ("ids", "force_ids"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _ids(name, getattr(self, name)))


@dataclass(frozen=True)
class Abort:
    """Stop the request with id `target`; without one, everything that runs."""

    target: int | None = None

    def __post_init__(self):
        if self.target is not None:
            _whole("target", self.target, 0, 1 << 53)


@dataclass(frozen=True)
class Info:
    """Ask what is loaded, on what."""


@dataclass(frozen=True)
class Unload:
    """Free the model's memory."""


@dataclass(frozen=True)
class Bench:
    """One leg of the bench on the loaded model: "prefill" of `tokens`, "decode" of `tokens` after `context` keys, or a "profile".

    Units: seconds (the leg ends after them with what it has).
    """

    leg: str = "decode"
    tokens: int = 128
    context: int = 32
    seconds: float = 20.0
    in_flight: int = 0
    window: int = 0

    def __post_init__(self):
        _one_of("leg", self.leg, BENCH_LEGS)
        _whole("tokens", self.tokens, 1, 1 << 20)
        _whole("context", self.context, 1, 1 << 20)
        _whole("in_flight", self.in_flight, 0, 16)
        _whole("window", self.window, 0, 16)
        if not isinstance(self.seconds, (int, float)) or not 0 < self.seconds <= 600:
            raise BadRequest(f"seconds must be in (0, 600], got {shown(self.seconds)}")


OPS = {"init": Init, "load": Load, "chat": Generate, "generate": Generate, "abort": Abort, "info": Info, "unload": Unload, "bench": Bench}


@dataclass(frozen=True)
class Request:
    """A checked request; `args` is an instance of the op's class."""

    id: int
    op: str
    args: Any


def parse(message: Any) -> Request:
    """A request from the plain object that the page posted.

    Raises: BadRequest naming the unknown op, the unknown or the bad argument.
    """
    if not isinstance(message, Mapping) or type(message.get("id")) is not int:
        raise BadRequest(f"a request is an object with a whole number id, got {shown(message)}")
    op, args = message.get("op"), message.get("args") or {}
    kind = OPS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadRequest(f"unknown op {shown(op)}; known: {', '.join(OPS)}")
    if not isinstance(args, Mapping):
        raise BadRequest(f"args of {op} must be an object, got {shown(args)}")
    known = [f.name for f in dataclasses.fields(kind)]
    unknown = [str(name) for name in args if name not in known]
    if unknown:
        raise BadRequest(f"{op} takes no {', '.join(unknown)}; known: {', '.join(known) or 'nothing'}")
    return Request(message["id"], op, kind(**args))


@dataclass(frozen=True)
class Progress:
    """Where a long request is. unit: what done and total count ("bytes" or "")."""

    id: int
    stage: str
    done: int = 0
    total: int = 0
    unit: str = ""

    def plain(self) -> dict:
        return {"id": self.id, "ev": "progress", "stage": self.stage, "done": self.done, "total": self.total, "unit": self.unit}


@dataclass(frozen=True)
class Result:
    """The end of a request that went well."""

    id: int
    value: Mapping[str, Any]

    def plain(self) -> dict:
        return {"id": self.id, "ev": "result", "value": dict(self.value)}


@dataclass(frozen=True)
class Error:
    """The end of a request that did not."""

    id: int
    code: str
    message: str
    hint: str = ""

    def plain(self) -> dict:
        return {"id": self.id, "ev": "error", "code": self.code, "message": self.message, "hint": self.hint}


def error_of(request_id: int, error: BaseException) -> Error:
    """The event of an exception: a JirdError's own words; anything else is our fault and says its type."""
    if isinstance(error, JirdError):
        return Error(request_id, error.code, str(error), error.hint)
    if isinstance(error, MemoryError):
        return Error(request_id, "out_of_memory", "The worker has no memory left.", "Reload the page; choose a smaller model.")
    return Error(request_id, "internal", f"{type(error).__name__}: {error}", "This is a fault in jird; reload the page and report it.")


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadRequest(f"{name} must be one of {', '.join(repr(a) for a in allowed)}, got {shown(value)}")


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise BadRequest(f"{name} must be a whole number from {low} to {high}, got {shown(value)}")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be text, got {shown(value)}")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise BadRequest(f"{name} must be a list of texts, got {shown(value)}")
    return tuple(value)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(type(v) is int and v >= 0 for v in value):
        raise BadRequest(f"{name} must be a list of token ids, got {shown(value)}")
    return tuple(value)
