"""Typed errors: what a person or a caller can be told, each with a code and a hint.

One class a kind of failure; `code` is stable (the page and tests go by it), `hint` says what to do.
"""

from __future__ import annotations

MESSAGE_CHARS = 2000  # names and values in a message come from files and pages, which may hold megabytes of anything


def shown(value: object, most: int = 80) -> str:
    """A value as an error's words show it: its repr, cut to `most` characters."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


class JirdError(Exception):
    """A failure that has a name. `str(e)` says what was asked and what was found; `e.hint` what to do."""

    code = "error"
    default_hint = ""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(_printable(message))
        self.hint = hint or self.default_hint


def _printable(message: str) -> str:
    """The message as a terminal and a page can show it: control characters and lone surrogates escaped, the middle of a very long one left out."""
    escaped = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in _cut(message))
    return _cut(escaped)


def _cut(text: str) -> str:
    half = MESSAGE_CHARS // 2
    return text if len(text) <= MESSAGE_CHARS else f"{text[:half]} ... {text[-half + 5:]}"


class NoWebGPU(JirdError):
    """The browser has no navigator.gpu, or gives no adapter or device."""

    code = "no_webgpu"
    default_hint = "Open the page over https or on localhost in a browser with WebGPU (Chrome, Edge, Safari 26, Firefox 141 or later)."


class DeviceLost(JirdError):
    """The GPU device went away; everything on it is gone."""

    code = "device_lost"
    default_hint = "The model must be loaded again; the conversation is kept."


class OutOfMemory(JirdError):
    """A GPU buffer could not be made."""

    code = "out_of_memory"
    default_hint = "Choose a smaller model or context, or close other tabs that use the GPU."


class KernelFailed(JirdError):
    """A kernel does not compile, or gives numbers that differ from its reference, and no twin is left."""

    code = "kernel_failed"
    default_hint = "Update the browser or the graphics driver; this device cannot compute the model correctly."


class NumericError(JirdError):
    """A logit is not finite; the request ends rather than print text from it."""

    code = "numeric"
    default_hint = "Try again; if it comes back, the checkpoint or the graphics driver is broken."


class ModelNotSupported(JirdError):
    """Architecture, tensor type, tokenizer or variant that the engine does not know, named in the message."""

    code = "model_not_supported"
    default_hint = "Choose a model of a supported family and format."


class BadCheckpoint(JirdError):
    """The file is not what it says: wrong magic, truncated, counts that cannot be, tensors past its end."""

    code = "bad_checkpoint"
    default_hint = "Download the file again; what is there is damaged or not a model file."


class BadRequest(JirdError):
    """Settings or input of a request that cannot be served, named with what is allowed."""

    code = "bad_request"


class ContextExceeded(BadRequest):
    """The prompt does not fit in the context."""

    code = "context_exceeded"
    default_hint = "Shorten the prompt or start a new conversation."


class Busy(JirdError):
    """One load at a time; a second one is refused."""

    code = "busy"
    default_hint = "Wait for the load in progress, or abort it."


class Aborted(JirdError):
    """The person stopped it."""

    code = "aborted"


class FetchFailed(JirdError):
    """Bytes that were asked for did not come, or something else came in their place."""

    code = "fetch_failed"
    default_hint = "Check the connection and the address, then try again."


class QuotaExceeded(JirdError):
    """The browser's storage has no room."""

    code = "quota_exceeded"
    default_hint = "Free disk space or delete other models."
