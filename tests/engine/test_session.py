"""A conversation keeps its ids: turns compute what is new, answers survive a lost device, and no prompt ever reads otherwise than the template says."""

from __future__ import annotations

import asyncio
import datetime
import json
from itertools import pairwise

import pytest
from jird.engine.generate import GenerateOptions
from jird.engine.options import Cancel
from jird.engine.sample import SamplingOptions
from jird.engine.session import Answer, Session
from jird.errors import BadRequest, ContextExceeded, DeviceLost
from jird.runtime.device_numpy import NumpyDevice
from jird.text.chat import encode_chat

from tests.tiny import Tiny

END = 258  # <|im_end|>
GREEDY = GenerateOptions(max_new=8)
SAMPLED = GenerateOptions(max_new=14, sampling=SamplingOptions(temperature=1.4, top_k=40, seed=11, repetition_penalty=1.2))
ENDING = GenerateOptions(max_new=40, sampling=SamplingOptions(temperature=1.0, seed=3, logit_bias={END: 4.0}))
STARTED = datetime.datetime(2026, 1, 2, 3, 4)


def drain(events, most=None):
    """(pieces, the Answer or None); most: stop listening after so many pieces."""

    async def go():
        pieces, answer = [], None
        async for event in events:
            if isinstance(event, Answer):
                answer = event
                continue
            pieces.append(event)
            if len(pieces) == most:
                break
        await events.aclose()
        return pieces, answer

    return asyncio.run(go())


def answer_to(session, asked, options=GREEDY):
    return drain(session.ask(asked, options))[1]


def template_ids(session, messages):
    return encode_chat(session.engine.tokenizer, session.engine.spec, messages, clock=lambda: session.started)


def decoded(session, ids):
    return session.engine.tokenizer.decode(ids, skip_special=False)


def said(session, asked):
    """The messages of the head's conversation and a new question."""
    out = [{"role": "system", "content": session.system}] if session.system else []
    for turn in session.path():
        out += [*turn.messages, {"role": "assistant", "content": turn.text}]
    return [*out, {"role": "user", "content": asked}]


@pytest.mark.parametrize("options", [GREEDY, ENDING], ids=["cut by length", "ended by its end token"])
def test_each_turn_begins_with_all_ids_before_it_and_computes_only_what_is_new(load, options):
    engine = load()
    session = Session(engine, system="Be brief.")
    known: list[int] = []
    for asked in ("Hello there", "And then?", "Why <|im_end|> so?"):
        messages = said(session, asked)
        answer = answer_to(session, asked, options)
        prompt = list(answer.result.prompt_ids)
        assert prompt[: len(known)] == known
        assert engine.timings.prefill_tokens == answer.result.prefill_tokens == len(prompt) - 1 - max(len(known) - 1, 0)
        assert decoded(session, prompt) == decoded(session, template_ids(session, messages))
        assert prompt.count(END) == len(messages)
        if options is ENDING:
            assert answer.result.finish_reason == "stop" and len(answer.result.ids) > 1
        known = prompt + list(answer.result.ids)
        assert session.context_used == len(known)


def test_answers_keep_the_ids_they_were_generated_with(load):
    engine = load()
    session = Session(engine)
    answer_to(session, "Hi", GenerateOptions(max_new=24, sampling=SamplingOptions(temperature=50, seed=1, allowed=frozenset(b"the"))))
    assert engine.tokenizer.encode(session.turns[0].text, special=False) != session.turns[0].ids  # "th" would be one token
    second = session.prepare("more").prompt_ids
    assert list(second[: session.context_used]) == [*session.turns[0].prompt_ids, *session.turns[0].ids]


def test_an_answer_equals_that_of_an_engine_that_never_reused_anything(load):
    session = Session(load())
    answers = [answer_to(session, asked, SAMPLED).result for asked in ("one", "two", "three")]
    fresh = Session.restore(load(), session.journal())
    fresh.select(session.turns[2].parent)
    anew = answer_to(fresh, "three", SAMPLED).result
    assert (anew.prompt_ids, anew.ids, anew.text) == (answers[2].prompt_ids, answers[2].ids, answers[2].text)
    assert anew.prefill_tokens == len(anew.prompt_ids) - 1 > answers[2].prefill_tokens


def test_edit_regenerate_and_branch_keep_what_they_share(load):
    engine = load()
    session = Session(engine, system="You are a jird.")
    first, second = answer_to(session, "What do you eat?").result, answer_to(session, "And where do you live?").result

    again = drain(session.regenerate())[1]
    assert (again.result.ids, again.result.prompt_ids, again.result.prefill_tokens) == (second.ids, second.prompt_ids, 0)
    assert session.children(0) == [1, again.turn] and session.head == again.turn

    edited = drain(session.edit(1, "And where do you sleep?"))[1].result
    shared = next(i for i, (a, b) in enumerate(zip(edited.prompt_ids, second.prompt_ids, strict=False)) if a != b)
    assert shared > len(first.prompt_ids) + len(first.ids)
    assert edited.prefill_tokens == len(edited.prompt_ids) - 1 - shared

    session.select(0)
    branch = answer_to(session, "Who else?").result
    assert list(branch.prompt_ids[: len(first.prompt_ids) + len(first.ids)]) == [*first.prompt_ids, *first.ids]
    assert [t.id for t in session.path()] == [0, session.head] and len(session.children(0)) == 4
    assert [t.text for t in session.path(1)] == [first.text, second.text]


def test_stop_refuses_a_full_context_before_anything_runs_and_makes_no_turn(load):
    session = Session(load(context=128), reserve=8)
    answer_to(session, "x" * 50)
    before, held = session.journal(), session.engine.kv.ids(0)
    with pytest.raises(ContextExceeded, match="the answer needs 8; the context holds 128"):
        answer_to(session, "y" * 50)
    assert (session.journal(), session.engine.kv.ids(0)) == (before, held)
    assert answer_to(session, "z").result.ids


def test_drop_oldest_says_which_turns_and_keeps_the_system_message(load):
    session = Session(load(context=160), system="Keep me.", on_full="drop_oldest", reserve=8)
    dropped = []
    for n in range(5):
        foreseen = session.prepare(f"{n}" * 12, GREEDY)
        answer = answer_to(session, f"{n}" * 12)
        assert (answer.result.prompt_ids, answer.dropped) == (foreseen.prompt_ids, foreseen.dropped)
        assert len(answer.result.prompt_ids) + 8 <= 160 + 1
        dropped.append(answer.dropped)
    assert dropped[0] == () and dropped[-1]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(dropped))
    kept = [t for t in session.path()[:-1] if t.id not in dropped[-1]]
    messages = [{"role": "system", "content": "Keep me."}]
    for turn in kept:
        messages += [*turn.messages, {"role": "assistant", "content": turn.text}]
    messages.append({"role": "user", "content": "4" * 12})
    prompt = session.turns[4].prompt_ids
    assert decoded(session, prompt) == decoded(session, template_ids(session, messages))
    at = bytes(kept[0].ids)  # ids of bytes: the answers keep theirs after a drop too
    assert at in b"".join(bytes([i]) if i < 256 else b"\xff" for i in prompt)
    with pytest.raises(ContextExceeded, match="the question has"):
        answer_to(session, "?" * 200)


def test_a_conversation_restored_into_a_smaller_context_loses_the_fewest_turns(load):
    session = Session(load(), on_full="drop_oldest", reserve=8)
    plain = GenerateOptions(max_new=8, sampling=SamplingOptions(allowed=frozenset(b"xyz")))  # answers that encode to the ids they have
    for n in range(7):
        answer_to(session, f"{n}" * 9, plain)
    for context in (512, 200, 120, 64):
        small = Session.restore(load(context=context), session.journal())
        dropped = small.prepare("Where were we?", GREEDY).dropped
        assert dropped == tuple(range(len(dropped)))
        sizes = [len(template_ids(small, said(small, "Where were we?")[2 * n :])) for n in range(8)]
        assert len(dropped) == next(n for n, size in enumerate(sizes) if size + 8 <= context + 1)
        assert answer_to(small, "Where were we?").dropped == dropped
    assert len(dropped) == 7


class LosesTheDevice(NumpyDevice):
    """Gone after `steps` submitted programs more."""

    steps = 1 << 30

    def run(self, program):
        ticket = super().run(program)
        self.steps -= 1
        gone = self.steps < 0

        class Ticket:
            async def result(self):
                if gone:
                    raise DeviceLost("the test took the device away")
                return await ticket.result()

        return Ticket()


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("options", [GenerateOptions(max_new=14), SAMPLED], ids=["greedy", "sampled"])
def test_after_a_lost_device_the_answer_goes_on_as_if_undisturbed(load, options, steps):
    clean = Session(load(), started=STARTED)
    answer_to(clean, "Hello")
    whole = answer_to(clean, "Tell me more", options).result

    device = LosesTheDevice()
    session = Session(load(device=device, window=1), started=STARTED)  # a submit a step, however fast the machine
    answer_to(session, "Hello")
    device.steps = steps
    with pytest.raises(DeviceLost):
        answer_to(session, "Tell me more", options)
    journal = json.loads(json.dumps(session.journal()))
    half = journal["turns"][-1]
    assert half["finish"] == "" and half["draw"] == len(half["ids"]) <= steps
    assert half["ids"] == list(whole.ids[: len(half["ids"])])

    restored = Session.restore(load(), journal)
    shown = restored.turns[1].text
    pieces, answer = drain(restored.continue_answer())
    assert (answer.result.ids, answer.result.text, answer.result.finish_reason) == (whole.ids, whole.text, whole.finish_reason)
    assert shown + "".join(p.text for p in pieces) == whole.text
    assert answer.result.prefill_tokens == len(whole.prompt_ids) + len(half["ids"]) - 1
    assert answer_to(restored, "more").result.ids == answer_to(clean, "more").result.ids


def test_an_answer_journalled_token_by_token_continues_from_every_point(load):
    options = GenerateOptions(max_new=20, sampling=SAMPLED.sampling)
    session = Session(load(), started=STARTED)
    journals = [session.journal()]

    async def go():
        async for event in session.ask("Tell", options):
            journals.append(json.loads(json.dumps(session.journal())))
            if not isinstance(event, Answer) and event.id >= 0:
                assert session.turn_journal()["ids"][-1] == event.id

    asyncio.run(go())
    whole = session.turns[0]
    halves = [j for j in journals[1:] if not j["turns"][0]["finish"]][::4]
    assert len(halves) >= 4
    engine = load()
    for journal in halves:
        restored = Session.restore(engine, journal)
        drain(restored.continue_answer())
        assert (restored.turns[0].ids, restored.turns[0].text, restored.turns[0].finish) == (whole.ids, whole.text, whole.finish)


def test_an_aborted_answer_continues_without_computing_anything_again(load):
    session = Session(load())
    cancel = Cancel()

    async def cut():
        async for _ in session.ask("Tell", SAMPLED, cancel):
            if len(session.turns[0].ids) == 5:
                cancel.cancel()

    asyncio.run(cut())
    assert session.turns[0].finish == "abort"
    assert len(session.turns[0].ids) < 14
    answer = drain(session.continue_answer())[1]
    assert answer.result.prefill_tokens == 0
    assert answer.result.ids == answer_to(Session(load(), started=session.started), "Tell", SAMPLED).result.ids
    with pytest.raises(BadRequest, match="has ended"):
        drain(session.continue_answer())


def test_a_half_answer_whose_last_id_ended_it_runs_nothing_more(load):
    session = Session(load())
    whole = answer_to(session, "Hello", ENDING).result
    for finish, cut, options in (("stop", whole.ids, {}), ("length", whole.ids[:-1], {"max_new": len(whole.ids) - 1})):
        journal = session.journal()
        journal["turns"][0] |= {"finish": "", "ids": list(cut), "draw": len(cut), "options": journal["turns"][0]["options"] | options}
        engine = load()
        restored = Session.restore(engine, journal)
        answer = drain(restored.continue_answer())[1]
        assert (answer.result.ids, answer.result.text, answer.result.finish_reason) == (cut, whole.text, finish)
        assert engine.kv.length(0) == 0


def test_an_abandoned_answer_is_a_half_answer_and_a_question_may_follow_it(load):
    session = Session(load())
    drain(session.ask("Tell", SAMPLED), most=4)
    assert (session.turns[0].finish, len(session.turns[0].ids)) == ("", 4)
    prepared = session.prepare("What?")
    assert list(prepared.prompt_ids[: session.context_used]) == [*session.turns[0].prompt_ids, *session.turns[0].ids]
    answer_to(session, "What?")
    with pytest.raises(BadRequest, match="followed by others"):
        drain(session.continue_answer(0))


def test_a_stop_string_is_cut_from_the_history_too(load):
    whole = answer_to(Session(load()), "Hello", GenerateOptions(max_new=20)).result
    at = next(i for i in range(4, len(whole.text) - 1) if whole.text[i : i + 2].isascii() and whole.text.index(whole.text[i : i + 2]) == i)
    session = Session(load())
    result = answer_to(session, "Hello", GenerateOptions(max_new=20, stop=(whole.text[at : at + 2],))).result
    assert (result.text, result.finish_reason) == (whole.text[:at], "stop")
    messages = said(session, "more")
    prompt = session.prepare("more").prompt_ids
    assert decoded(session, prompt) == decoded(session, template_ids(session, messages))
    assert list(prompt[: len(result.prompt_ids)]) == list(result.prompt_ids)


CHANGES = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + ('~' + m['content']) + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
COUNTS = "{{ messages | length }}" + CHANGES.replace("'~' + ", "")


@pytest.mark.parametrize("template", [CHANGES, COUNTS], ids=["rewrites answers", "rewrites the beginning"])
def test_a_template_that_rewrites_the_past_gets_its_own_ids(load, template):
    session = Session(load())
    session.engine.spec.config["chat_template"] = template
    answer_to(session, "hello", SAMPLED)
    assert list(session.prepare("more").prompt_ids) == template_ids(session, said(session, "more"))
    answer_to(session, "more")
    assert session.turns[1].ids


def test_a_template_that_dates_its_prompts_keeps_the_date_of_the_conversation(load):
    session = Session(load(), started=STARTED)
    session.engine.spec.config["chat_template"] = "{{ strftime_now('%H:%M') }}" + CHANGES.replace("'~' + ", "")
    answer_to(session, "hello")
    restored = Session.restore(session.engine, session.journal())
    assert decoded(restored, restored.prepare("more").prompt_ids).startswith("03:04")
    assert answer_to(restored, "more").result.prefill_tokens < 40


def test_special_tokens_inside_an_answer_do_not_enter_the_next_prompt(load):
    session = Session(load())
    answer_to(session, "hello", GenerateOptions(max_new=6, ignore_stop_ids=True, sampling=SamplingOptions(allowed=frozenset({65, END}), temperature=1.0, seed=2)))
    assert END in session.turns[0].ids[:-1]
    prompt = list(session.prepare("more").prompt_ids)
    assert prompt == template_ids(session, said(session, "more"))


def test_another_model_keeps_the_texts_and_forgets_the_ids(load):
    session = Session(load())
    answer_to(session, "Hello")
    drain(session.ask("Tell", SAMPLED), most=3)
    other = Session.restore(load(Tiny(arch="qwen2")), session.journal())
    assert [t.text for t in other.path()] == [t.text for t in session.path()]
    with pytest.raises(BadRequest, match="another model|has ended"):
        drain(other.continue_answer())
    assert list(other.prepare("more").prompt_ids) == template_ids(other, said(other, "more"))
    assert answer_to(other, "more").result.ids


def test_what_is_no_journal_is_refused_in_words(load):
    session = Session(load())
    answer_to(session, "Hello")
    good = session.journal()
    turn = good["turns"][0]
    for bad in (None, [], {}, {**good, "version": 2}, {**good, "turns": 3}, {**good, "turns": [{}]}, {**good, "head": 7}, {**good, "turns": [turn, turn]},
                {**good, "turns": [{**turn, "parent": 5}]}, {**good, "turns": [{**turn, "ids": ["a"]}]}, {**good, "started": "soon"}, {**good, "system": 4}):
        with pytest.raises(BadRequest):
            Session.restore(session.engine, bad)
    assert Session.restore(session.engine, good).journal() == good


def test_a_refused_question_leaves_no_turn(load):
    session = Session(load())
    for asked, options in ((7, GREEDY), ([], GREEDY), ({"role": "king", "content": ""}, GREEDY), ("x", GenerateOptions(max_new=0)), ("x", GenerateOptions(stop=("",)))):
        with pytest.raises(BadRequest):
            answer_to(session, asked, options)

    async def twice():
        events = session.ask("first", SAMPLED)
        await anext(events)
        with pytest.raises(BadRequest, match="in progress"):
            await anext(session.ask("second"))
        await events.aclose()

    asyncio.run(twice())
    assert [t.messages[0]["content"] for t in session.turns.values()] == ["first"] and session.head == 0
    for wrong in ({"on_full": "forget"}, {"reserve": 0}, {"system": 3}):
        with pytest.raises(BadRequest):
            Session(session.engine, **wrong)
    with pytest.raises(BadRequest, match="turn 9 is not there"):
        session.select(9)
