"""app/worker.py over the real engine on numpy: requests in, events out, and nothing that a request does ends the loop."""

from __future__ import annotations

import asyncio

import pytest

from jird.app.messages import Load
from jird.app.worker import Worker, generate_options
from jird.errors import BadRequest, DeviceLost, OutOfMemory
from jird.runtime.device_numpy import NumpyDevice
from jird.weights.source import FileSource
from tests.tiny import Tiny

CHAT = {"messages": [{"role": "user", "content": "in the end"}], "options": {"max_new": 6}}


class FileHost:
    """A Host of files, the numpy device and a list; `fault` is raised by the next buffer or program."""

    def __init__(self):
        self.events: list = []
        self.opened = 0
        self.fault: Exception | None = None
        self.memory: dict[str, str] = {}

    async def recall(self, key):
        return self.memory.get(key, "")

    async def remember(self, key, text):
        self.memory[key] = text

    def post(self, event):
        self.events.append(event)

    def token(self, request_id, text, count):
        self.events.append({"id": request_id, "ev": "token", "text": text, "count": count})

    async def open_device(self, limits):
        self.opened += 1
        return FaultyDevice(self)

    async def open_model(self, load: Load, store, cancel):
        return FileSource(load.url), None

    def last(self, request_id):
        return next(e for e in reversed(self.events) if e["id"] == request_id and e["ev"] in ("result", "error"))

    def of(self, request_id, ev):
        return [e for e in self.events if e["id"] == request_id and e["ev"] == ev]


class FaultyDevice(NumpyDevice):
    def __init__(self, host):
        super().__init__()
        self._host = host

    async def create_buffer(self, label, nbytes, **options):
        if isinstance(self._host.fault, OutOfMemory):
            raise self._host.fault
        return await super().create_buffer(label, nbytes, **options)

    def run(self, program):
        if isinstance(self._host.fault, DeviceLost):
            raise self._host.fault
        return super().run(program)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return str(Tiny().write(tmp_path_factory.mktemp("worker") / "tiny.gguf"))


def talk(*steps):
    """Runs steps, each a list of messages posted together or a function of the host; returns the host."""
    host = FileHost()

    async def go():
        worker = Worker(host)
        for step in steps:
            if callable(step):
                step(host)
                continue
            for message in step:
                worker.receive(message)
            await idle()

    asyncio.run(go())
    return host


async def idle():
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)


def load(request_id, url, **args):
    return {"id": request_id, "op": "load", "args": {"url": url, "title": "tiny", "context": 128, **args}}


def chat(request_id, **args):
    return {"id": request_id, "op": "chat", "args": {**CHAT, **args}}


def test_load_then_chat_streams_tokens_and_ends_with_the_result(gguf):
    host = talk([{"id": 1, "op": "init"}], [load(2, gguf)], [chat(3)])
    assert host.last(1)["value"]["adapter"]
    loaded = host.last(2)["value"]
    assert loaded["title"] == "tiny" and loaded["bytes_loaded"] > 0 and loaded["dispatches_per_token"] > 0
    stages = [e["stage"] for e in host.of(2, "progress")]
    assert stages[0] == "header" and "weights" in stages and stages[-1] == "ready"
    result = host.last(3)["value"]
    assert len(result["ids"]) == 6 and result["finish_reason"] == "length"
    assert "".join(e["text"] for e in host.of(3, "token")) == result["text"]


def test_a_prompt_can_be_messages_raw_text_or_ids(gguf):
    host = talk([load(1, gguf)], [chat(2)])
    ids = host.last(2)["value"]["prompt_ids"]
    again = {"options": {"max_new": 6}}
    host = talk([load(1, gguf)], [{"id": 2, "op": "chat", "args": {**again, "ids": ids}}], [{"id": 3, "op": "chat", "args": {**again, "raw": "hein"}}])
    assert host.last(2)["value"]["prompt_ids"] == ids
    assert 0 < len(host.last(3)["value"]["prompt_ids"]) < len(ids)


def test_forced_ids_give_the_models_own_choices(gguf):
    host = talk([load(1, gguf)], [chat(2)])
    ids = host.last(2)["value"]["ids"]
    host = talk([load(1, gguf)], [chat(2, force_ids=ids)])
    value = host.last(2)["value"]
    assert value["top1"] == ids == value["ids"]


def test_a_second_load_and_a_chat_during_a_load_are_refused_and_the_load_goes_on(gguf):
    host = talk([load(1, gguf), load(2, gguf), chat(3)], [chat(4)])
    assert host.last(2)["code"] == host.last(3)["code"] == "busy"
    assert host.last(1)["ev"] == host.last(4)["ev"] == "result"


def test_abort_during_load_ends_the_load_and_another_can_follow(gguf):
    host = talk([load(1, gguf), {"id": 2, "op": "abort", "args": {"target": 1}}], [chat(3)], [load(4, gguf)], [chat(5)])
    assert host.last(1)["code"] == "aborted"
    assert host.last(2)["value"] == {"aborted": [1]}
    assert host.last(3)["code"] == "bad_request" and "no model is loaded" in host.last(3)["message"]
    assert host.last(4)["ev"] == host.last(5)["ev"] == "result"


def test_abort_of_an_answer_ends_it_and_the_next_one_is_whole(gguf):
    host = talk([load(1, gguf)], [chat(2), {"id": 3, "op": "abort"}], [chat(4)])
    assert host.last(2)["value"]["finish_reason"] == "abort"
    assert host.of(2, "token") == []
    assert len(host.last(4)["value"]["ids"]) == 6


def test_abort_of_another_request_stops_nothing(gguf):
    host = talk([load(1, gguf)], [chat(2), {"id": 3, "op": "abort", "args": {"target": 99}}])
    assert host.last(3)["value"] == {"aborted": []}
    assert host.last(2)["value"]["finish_reason"] == "length"


def test_bad_requests_are_answered_by_their_id_and_nothing_else_happens(gguf):
    host = talk([{"id": 7, "op": "fly"}, {"op": "info"}, "noise", {"id": 8, "op": "load", "args": {}}], [{"id": 9, "op": "info"}])
    assert [e["id"] for e in host.events if e.get("code") == "bad_request"] == [7, 0, 0, 8]
    assert host.last(9)["value"] == {"loaded": False}


@pytest.mark.parametrize("options, words", [
    ({"speed": 1}, "options take no speed"),
    ({"max_new": 0}, "max_new"),
    ({"max_new": 2.5}, "max_new"),
    ({"stop": "end"}, "stop must be a list"),
    ({"stop": [""]}, "stop must be a list"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"min_p": 2}, "min_p"),
    ({"top_k": -1}, "top_k"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": -1}, "seed"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
])
def test_options_out_of_range_are_refused_by_name(options, words):
    with pytest.raises(BadRequest, match=words):
        generate_options(options)


def test_empty_and_too_long_prompts_end_that_request_only(gguf):
    host = talk([load(1, gguf)], [{"id": 2, "op": "chat", "args": {"ids": []}}], [{"id": 3, "op": "chat", "args": {"ids": [65] * 500}}], [chat(4)])
    assert host.last(2)["code"] == "bad_request" and host.last(3)["code"] == "context_exceeded"
    assert host.last(4)["ev"] == "result"


def test_a_web_page_in_place_of_weights_is_a_bad_checkpoint(tmp_path, gguf):
    page = tmp_path / "model.gguf"
    page.write_text("<!doctype html><title>404</title>" + " " * 64)
    host = talk([load(1, str(page))], [load(2, gguf)])
    assert host.last(1)["code"] == "bad_checkpoint" and host.last(1)["hint"]
    assert host.last(2)["ev"] == "result"


@pytest.mark.parametrize("fault", [OutOfMemory("no room for buffer w/0 of 5 bytes"), DeviceLost("the GPU device was lost")])
def test_after_a_fault_of_the_device_the_next_load_opens_another(gguf, fault):
    def set_fault(host):
        host.fault = fault

    def end_fault(host):
        host.fault = None

    host = talk([load(1, gguf)], set_fault, [chat(2), load(3, gguf)], [load(4, gguf)], end_fault, [load(5, gguf)], [chat(6)])
    failed = [e for e in host.events if e.get("code") == fault.code]
    assert failed and all(e["ev"] == "error" and e["hint"] for e in failed)
    assert host.last(5)["ev"] == host.last(6)["ev"] == "result"
    assert host.opened >= 2


def test_an_exception_of_our_own_is_an_error_event_and_the_loop_goes_on(gguf):
    def break_token(host):
        host.token = lambda *_: 1 / 0

    def mend_token(host):
        del host.token

    host = talk([load(1, gguf)], break_token, [chat(2)], mend_token, [chat(3)])
    assert host.last(2)["code"] == "internal" and "ZeroDivisionError" in host.last(2)["message"]
    assert host.last(3)["ev"] == "result"


def test_unload_frees_the_model(gguf):
    host = talk([load(1, gguf)], [{"id": 2, "op": "unload"}], [chat(3)], [{"id": 4, "op": "info"}])
    assert host.last(2)["value"] == {"loaded": False}
    assert host.last(3)["code"] == "bad_request"
    assert host.last(4)["value"]["loaded"] is False and host.last(4)["value"]["adapter"]


def test_bench_legs_give_figures_and_leave_the_engine_as_it_was(gguf):
    legs = [{"leg": "prefill", "tokens": 40}, {"leg": "decode", "tokens": 12, "context": 16, "in_flight": 3, "window": 2}, {"leg": "profile"}]
    host = talk([load(1, gguf)], *[[{"id": 2 + i, "op": "bench", "args": args}] for i, args in enumerate(legs)], [chat(9)])
    prefill, decode, profile = (host.last(2 + i)["value"] for i in range(3))
    assert prefill["tokens"] == 40 and prefill["tok_s"] > 0
    assert decode["tokens"] == 12 <= len(host.of(3, "token")) and decode["in_flight"] == 3 and decode["window"] == 2
    assert decode["submit_ms_per_token"] > 0 and decode["tok_s"] > 0
    assert profile == {"has_timestamps": False}
    assert host.last(9)["ev"] == "result"


def test_a_bench_leg_that_does_not_fit_or_is_out_of_time_says_so(gguf):
    late = {"leg": "decode", "tokens": 100, "context": 16, "seconds": 0.02}
    host = talk([load(1, gguf)], [{"id": 2, "op": "bench", "args": {"leg": "prefill", "tokens": 500}}], [{"id": 3, "op": "bench", "args": late}])
    assert host.last(2)["code"] == "bad_request" and "context of 501" in host.last(2)["message"]
    assert host.last(3)["value"]["tokens"] < 100
