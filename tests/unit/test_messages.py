"""app/messages.py: what is taken from the page, and what is refused with which words."""

import pytest
from jird.app import messages
from jird.errors import MESSAGE_CHARS, BadRequest, Busy


def test_a_request_becomes_its_dataclass():
    request = messages.parse({"id": 3, "op": "load", "args": {"url": "http://host/m.gguf", "bytes": 7, "context": 512}})
    assert (request.id, request.op) == (3, "load")
    assert request.args == messages.Load(url="http://host/m.gguf", bytes=7, context=512)


def test_ops_without_arguments_need_none():
    assert messages.parse({"id": 1, "op": "info"}).args == messages.Info()
    assert messages.parse({"id": 1, "op": "abort", "args": {}}).args == messages.Abort()


@pytest.mark.parametrize(
    "message, words",
    [
        ({"id": 1, "op": "fly"}, "unknown op 'fly'; known: init, load"),
        ({"id": 1, "op": ["load"]}, "unknown op"),
        ({"id": "1", "op": "info"}, "whole number id"),
        ("info", "whole number id"),
        ({"id": 1, "op": "info", "args": 5}, "must be an object"),
        ({"id": 1, "op": "load", "args": {"url": "a", "speed": 3}}, "load takes no speed; known: url"),
        ({"id": 1, "op": "load", "args": {}}, "a url or a file"),
        ({"id": 1, "op": "load", "args": {"url": "a", "file": object()}}, "a url or a file"),
        ({"id": 1, "op": "load", "args": {"url": 5}}, "url must be text"),
        ({"id": 1, "op": "load", "args": {"url": "a", "context": 2}}, "context must be a whole number from 16"),
        ({"id": 1, "op": "load", "args": {"url": "a", "context": 64.5}}, "context must be a whole number"),
        ({"id": 1, "op": "load", "args": {"url": "a", "context": True}}, "context must be a whole number"),
        ({"id": 1, "op": "init", "args": {"limits": "none"}}, "limits must be one of"),
        ({"id": 1, "op": "init", "args": {"store": "tape"}}, "store must be one of"),
        ({"id": 1, "op": "chat", "args": {}}, "messages, raw or ids"),
        ({"id": 1, "op": "chat", "args": {"raw": "a", "ids": [1]}}, "messages, raw or ids"),
        ({"id": 1, "op": "chat", "args": {"messages": []}}, "messages, raw or ids"),
        ({"id": 1, "op": "chat", "args": {"ids": [1, -2]}}, "ids must be a list of token ids"),
        ({"id": 1, "op": "chat", "args": {"raw": "a", "force_ids": ["b"]}}, "force_ids must be a list of token ids"),
        ({"id": 1, "op": "chat", "args": {"raw": "a", "options": 3}}, "options must be an object"),
        ({"id": 1, "op": "abort", "args": {"target": "all"}}, "target must be a whole number"),
        ({"id": 1, "op": "bench", "args": {"leg": "sprint"}}, "leg must be one of"),
        ({"id": 1, "op": "bench", "args": {"seconds": 0}}, "seconds must be in"),
    ],
)
def test_bad_requests_say_what_is_wrong(message, words):
    with pytest.raises(BadRequest, match=words):
        messages.parse(message)


def test_events_are_plain_objects_with_the_request_id():
    assert messages.Progress(2, "weights", 5, 10, "bytes").plain() == {
        "id": 2, "ev": "progress", "stage": "weights", "done": 5, "total": 10, "unit": "bytes"}
    assert messages.Result(2, {"a": 1}).plain() == {"id": 2, "ev": "result", "value": {"a": 1}}


def test_a_typed_error_keeps_its_code_and_hint_and_any_other_names_its_type():
    assert messages.error_of(4, Busy("no")).plain() == {
        "id": 4, "ev": "error", "code": "busy", "message": "no", "hint": Busy.default_hint}
    other = messages.error_of(4, ZeroDivisionError("by zero"))
    assert other.code == "internal" and other.message == "ZeroDivisionError: by zero" and other.hint
    assert messages.error_of(4, MemoryError()).code == "out_of_memory"


def test_a_message_of_megabytes_or_with_control_characters_is_cut_and_escaped():
    error = messages.error_of(1, BadRequest("begin \x1b[31m\ud800\n" + "x\0" * 10**6 + "end"))
    assert error.message.startswith("begin \\x1b[31m\\ud800\n") and error.message.endswith("end") and len(error.message) <= MESSAGE_CHARS
