"""The worker's message loop: requests in, engine calls, events out. Every exception becomes an error event; nothing ends the loop.

Worker is plain Python over a Host; BrowserHost is the one that knows JavaScript.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import traceback
from contextlib import aclosing
from time import perf_counter
from typing import Any, Mapping, Protocol

from ..engine.generate import GenerateOptions, Result, force_ids, generate_text
from ..engine.load import SIDECAR_FILES, Sidecar, load_engine, sidecar_of
from ..engine.options import Cancel, EngineOptions, LoadProgress
from ..engine.sample import SamplingOptions
from ..errors import BadRequest, Busy, DeviceLost, FetchFailed, JirdError, ModelNotSupported, OutOfMemory
from ..runtime.device import Device
from ..text.chat import encode_chat, encode_prompt
from ..weights.checkpoint import Source
from . import bench, messages
from .messages import Abort, Bench, Generate, Init, Load, Progress, Request

PROGRESS_S = 0.05
BREATH_S = 0.05
MEMORY = "jird-memory"  # the CacheStorage of small texts
MODEL_SUFFIXES = (".gguf", ".safetensors")
BUSY = {
    "load": "A model is being loaded.",
    "chat": "An answer is being written.",
    "generate": "An answer is being written.",
    "bench": "A bench leg is running.",
    "unload": "The model is being unloaded.",
    "init": "The GPU is being opened.",
}


class Host(Protocol):
    """What the platform gives the worker."""

    def post(self, event: dict) -> None:
        """Send an event to the page."""

    def token(self, request_id: int, text: str, count: int) -> None:
        """Send a token to the page; cheap, because there are many."""

    async def open_device(self, limits: str) -> Device:
        """Raises: NoWebGPU."""

    async def open_model(self, load: Load, store: str, cancel: Cancel) -> tuple[Source, Sidecar | None]:
        """The checkpoint's bytes (to be closed), and what stands beside them. Raises: FetchFailed, BadCheckpoint, Aborted."""

    async def recall(self, key: str) -> str:
        """What was last remembered under `key` for this browser version; "" when nothing was, or it cannot be had."""

    async def remember(self, key: str, text: str) -> None:
        """Keep `text` for later visits; a store that refuses is no error."""


class Worker:
    """The page's engine: one device, one model, one long request at a time."""

    def __init__(self, host: Host):
        self._host = host
        self._init = Init()
        self._device: Device | None = None
        self._engine: Any = None
        self._loaded: dict[str, Any] = {}
        self._running: tuple[Request, Cancel] | None = None
        self._known: set[str] = set()
        self._kept = 0
        self._tasks: set[asyncio.Task] = set()

    def receive(self, message: Any) -> None:
        """Take a request of the page; returns at once, the answer comes as events."""
        try:
            request = messages.parse(message)
        except JirdError as error:
            given = message.get("id") if isinstance(message, Mapping) else 0
            self._host.post(messages.error_of(given if type(given) is int else 0, error).plain())
            return
        task = asyncio.ensure_future(self._serve(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request) -> None:
        try:
            value = await self._do(request)
        except Exception as error:  # the loop outlives every request
            event: Any = messages.error_of(request.id, error)
            if event.code == "internal":
                traceback.print_exception(error)
            if isinstance(error, (DeviceLost, OutOfMemory)):
                self._drop_device()
        else:
            event = messages.Result(request.id, value)
        try:
            self._host.post(event.plain())
        except Exception as error:
            self._host.post(messages.error_of(request.id, error).plain())

    async def _do(self, request: Request) -> Mapping[str, Any]:
        if isinstance(request.args, Abort):
            return self._abort(request.args)
        if isinstance(request.args, messages.Info):
            return self._info()
        if self._running:
            running = self._running[0]
            raise Busy(f"{request.op} is refused: {BUSY[running.op]}", "Wait for it, or stop it.")
        cancel = Cancel()
        self._running = (request, cancel)
        try:
            if isinstance(request.args, Init):
                return await self._open(request.args)
            if isinstance(request.args, Load):
                return await self._load(request, cancel)
            if isinstance(request.args, Generate):
                return await self._generate(request, cancel)
            if isinstance(request.args, Bench):
                return await self._bench(request, cancel)
            return self._unload()
        finally:
            self._running = None

    def _abort(self, abort: Abort) -> dict:
        """Marks what runs as cancelled; its own last event tells when it has ended."""
        if self._running and abort.target in (None, self._running[0].id):
            self._running[1].cancel()
            return {"aborted": [self._running[0].id]}
        return {"aborted": []}

    async def _open(self, init: Init) -> dict:
        """Opens the GPU, or keeps the one that was opened the same way."""
        if self._device is None or init.limits != self._init.limits:
            self._drop_device()
            self._init = init
            self._device = await self._host.open_device(init.limits)
        self._init = init
        return self._adapter()

    def _adapter(self) -> dict:
        info = self._device.info
        return {"adapter": info.name, "features": sorted(info.features), "trust": info.trust, "limits": dataclasses.asdict(info.limits)}

    async def _load(self, request: Request, cancel: Cancel) -> dict:
        load, began = request.args, perf_counter()
        if self._device is None:
            await self._open(self._init)
        self._unload()
        progress = _Throttle(self._host, request.id)
        progress("header", 0, 1)
        source, sidecar = await self._host.open_model(load, self._init.store, cancel)
        options = EngineOptions(context=load.context, in_flight=load.in_flight, window=load.window)
        try:
            await self._recall_trust()
            self._engine = await load_engine(self._device, source, options, progress.load, cancel, sidecar, known=self._known)
        finally:
            source.close()
        await self._remember_trust()
        notice = getattr(source, "notice", "")
        ms = (perf_counter() - began) * 1e3
        self._loaded = {"name": load.name, "title": load.title or load.name, "load_ms": ms, "bytes_loaded": source.size, "notice": notice}
        return self._info()

    async def _recall_trust(self) -> None:
        """Kernels that passed the self-test on this adapter and browser in an earlier visit are not tested again."""
        if not self._known:
            held = (await self._host.recall(f"selftest/{self._device.info.name}")).split()
            self._known, self._kept = set(held), len(held)

    async def _remember_trust(self) -> None:
        if len(self._known) > self._kept:
            self._kept = len(self._known)
            await self._host.remember(f"selftest/{self._device.info.name}", " ".join(sorted(self._known)))

    def _info(self) -> dict:
        """Adapter and model; {"loaded": False} with neither."""
        adapter = self._adapter() if self._device else {}
        if self._engine is None:
            return {"loaded": False, **adapter}
        return {"loaded": True, **adapter, **self._engine.info(), **self._loaded}

    async def _generate(self, request: Request, cancel: Cancel) -> dict:
        asked, engine = request.args, self._need_engine()
        options = generate_options(asked.options)
        prompt_ids = self._prompt_ids(asked)
        if asked.force_ids is not None:
            return await self._force(request, prompt_ids, cancel)
        breath = Breath()
        async with aclosing(generate_text(engine, prompt_ids, options, cancel)) as events:
            async for event in events:
                if isinstance(event, Result):
                    return self._result(event)
                await breath.take()
                if not cancel.is_cancelled:
                    self._host.token(request.id, event.text, 1)
        raise AssertionError("generate_text ends with a Result")

    def _prompt_ids(self, asked: Generate) -> list[int]:
        engine = self._engine
        if asked.ids is not None:
            return list(asked.ids)
        if asked.raw is not None:
            return encode_prompt(engine.tokenizer, engine.spec, asked.raw)
        return encode_chat(engine.tokenizer, engine.spec, list(asked.messages))

    async def _force(self, request: Request, prompt_ids: list[int], cancel: Cancel) -> dict:
        """The answer is given: its text is what the ids say, and top1 what the model would have said."""
        engine, ids = self._engine, list(request.args.force_ids)
        if not ids:
            raise BadRequest("force_ids is empty; at least one id is needed")
        began = perf_counter()
        top1 = await force_ids(engine, prompt_ids, ids, cancel)
        t = engine.timings
        rate = len(ids) / max(perf_counter() - began - t.prefill_ms / 1e3, 1e-6)
        text = engine.tokenizer.decode(ids)
        self._host.token(request.id, text, len(ids))
        result = Result(tuple(prompt_ids), tuple(ids), text, "length", 0.0, t.prefill_tokens, 0.0, rate, engine.info()["dispatches_per_token"])
        return {**self._result(result), "prefill_tok_s": None, "top1": [int(i) for i in top1]}

    def _result(self, result: Result) -> dict:
        """A rate that was not measured is None: nothing of the prompt was computed, or only one token was made."""
        value = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
        value["prompt_ids"], value["ids"] = [int(i) for i in result.prompt_ids], [int(i) for i in result.ids]
        if not result.prefill_tokens:
            value["prefill_tok_s"] = None
        if not result.ids:
            value["decode_tok_s"] = None
        return value

    async def _bench(self, request: Request, cancel: Cancel) -> dict:
        return await bench.run(self._need_engine(), request.args, cancel, lambda text: self._host.token(request.id, text, 1))

    def _need_engine(self) -> Any:
        if self._engine is None:
            raise BadRequest("no model is loaded", "Load a model first.")
        return self._engine

    def _unload(self) -> dict:
        if self._engine is not None:
            self._engine.close()
        self._engine, self._loaded = None, {}
        return {"loaded": False}

    def _drop_device(self) -> None:
        """After a loss: nothing on the device can be used; the next load opens another one."""
        engine, device = self._engine, self._device
        self._engine, self._device, self._loaded = None, None, {}
        for part in (engine, device):
            if part is not None:
                try:
                    part.close()
                except Exception as error:  # a lost device may refuse even this, and there is nothing more to free
                    self._host.post(Progress(0, f"closing failed: {type(error).__name__}").plain())


class Breath:
    """Lets messages in, an abort above all, where results come so fast that nothing is ever waited for."""

    def __init__(self):
        self._taken = 0.0

    async def take(self) -> None:
        """Gives way to the event loop at most every BREATH_S."""
        now = perf_counter()
        if now - self._taken > BREATH_S:
            self._taken = now
            await asyncio.sleep(0)


class _Throttle:
    """Progress of one request: every stage once, and counts at most every PROGRESS_S."""

    def __init__(self, host: Host, request_id: int):
        self._host, self._id = host, request_id
        self._stage, self._sent = "", 0.0

    def __call__(self, stage: str, done: int, total: int, unit: str = "") -> None:
        now = perf_counter()
        if stage == self._stage and now - self._sent < PROGRESS_S and done < total:
            return
        self._stage, self._sent = stage, now
        self._host.post(Progress(self._id, stage, done, total, unit).plain())

    def load(self, p: LoadProgress) -> None:
        self(p.stage, p.done, p.total, "bytes" if p.stage == "weights" else "")


def generate_options(raw: Mapping[str, Any]) -> GenerateOptions:
    """GenerateOptions from the page's flat options.

    Raises: BadRequest naming the unknown or the bad one.
    """
    sampling_names = [f.name for f in dataclasses.fields(SamplingOptions)]
    own_names = [f.name for f in dataclasses.fields(GenerateOptions) if f.name != "sampling"]
    unknown = [str(name) for name in raw if name not in sampling_names + own_names]
    if unknown:
        raise BadRequest(f"options take no {', '.join(unknown)}; known: {', '.join(own_names + sampling_names)}")
    own = {name: raw[name] for name in own_names if name in raw}
    if type(own.get("max_new", 1)) is not int or own.get("max_new", 1) < 1:
        raise BadRequest(f"max_new must be a whole number of at least 1, got {own['max_new']!r}")
    stop = own.get("stop", ())
    if not isinstance(stop, (list, tuple)) or not all(isinstance(s, str) and s for s in stop):
        raise BadRequest(f"stop must be a list of texts that are not empty, got {stop!r}")
    sampling = {name: raw[name] for name in sampling_names if name in raw}
    try:
        if "logit_bias" in sampling:
            sampling["logit_bias"] = {int(key): value for key, value in dict(sampling["logit_bias"]).items()}
        if sampling.get("allowed") is not None:
            sampling["allowed"] = frozenset(int(i) for i in sampling["allowed"])
    except (TypeError, ValueError) as error:
        raise BadRequest(f"logit_bias maps ids to numbers and allowed is a list of ids ({error})") from None
    return GenerateOptions(**{**own, "stop": tuple(stop)}, sampling=SamplingOptions(**sampling))


class BrowserHost:
    """The Host of a web worker."""

    def __init__(self):
        import js
        from pyodide.ffi import JsException

        from ..runtime.device_web import is_null

        self._js, self._refused, self._is_null = js, JsException, is_null
        self._post, self._array, self._parse = js.postMessage, js.Array.of, js.JSON.parse

    def post(self, event: dict) -> None:
        self._post(self._parse(json.dumps(event, allow_nan=False)))

    def token(self, request_id: int, text: str, count: int) -> None:
        self._post(self._array(request_id, "token", text, count))

    async def open_device(self, limits: str) -> Device:
        from ..runtime.device_web import open_device

        return await open_device(limits or "adapter")

    async def open_model(self, load: Load, store: str, cancel: Cancel) -> tuple[Source, Sidecar | None]:
        from ..weights.source import open_file, open_url

        if load.file is not None:
            return await open_file(load.file), None
        if not load.url.endswith("/"):
            return await open_url(load.url, parts=load.parts, nbytes=load.bytes, sha256=load.sha256, store=store), None
        weights = [name for name in load.files if name.endswith(MODEL_SUFFIXES)]
        if len(weights) != 1:
            raise ModelNotSupported(f"the folder holds {len(weights)} weight files ({', '.join(weights[:3])}); exactly one .gguf or .safetensors is read")
        sidecar = None if weights[0].endswith(".gguf") else await self._sidecar(load)
        cancel.check()
        return await open_url(load.url + weights[0], nbytes=load.files[weights[0]], store=store), sidecar

    async def recall(self, key: str) -> str:
        try:
            found = await (await self._js.caches.open(MEMORY)).match(self._place(key))
            return "" if self._is_null(found) else str(await found.text())
        except self._refused:
            return ""

    async def remember(self, key: str, text: str) -> None:
        try:
            await (await self._js.caches.open(MEMORY)).put(self._place(key), self._js.Response.new(text))
        except self._refused:
            pass  # storage refused or full: the next visit tests again

    def _place(self, key: str) -> str:
        """An address of this browser version's own for `key`; nothing is ever fetched from it."""
        return f"./memory/{self._js.encodeURIComponent(key)}?browser={self._js.encodeURIComponent(self._js.navigator.userAgent)}"

    async def _sidecar(self, load: Load) -> Sidecar:
        """config.json and the tokenizer's files of a checkpoint folder."""
        return sidecar_of({name: await self._bytes(load.url + name) for name in SIDECAR_FILES if name in load.files})

    async def _bytes(self, url: str) -> bytes:
        response = await self._js.fetch(url)
        if not response.ok:
            raise FetchFailed(f"{url} answered {response.status}")
        return (await response.arrayBuffer()).to_bytes()


async def main() -> None:
    """Takes the worker's messages over from worker.js; the listener lives as long as the worker."""
    import js
    from pyodide.ffi import create_proxy

    worker = Worker(BrowserHost())
    js.self.onmessage = create_proxy(lambda event: worker.receive(plain(event.data)))
    js.postMessage(js.JSON.parse('{"id": 0, "ev": "ready"}'))


def plain(value: Any) -> Any:
    """A posted object as Python data: null and undefined are None; a File stays what it is."""
    value = value.to_py() if hasattr(value, "to_py") else value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if type(value).__name__ in ("JsNull", "JsUndefined") else value
