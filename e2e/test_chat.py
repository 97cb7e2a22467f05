"""SmolLM2 in the browsers: the ids that fp32 gives, position by position, whatever the adapter's limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.env import ROOT

CASES = json.loads((ROOT / "tests/golden/smollm2_greedy.json").read_text(encoding="utf-8"))
SURE = 0.02
FRANCE = CASES[0]


def disagreements(case: dict, top1: list[int]) -> list[int]:
    """Positions whose margin is sure and whose choice is another one."""
    assert len(top1) == len(case["ids"]) == len(case["margins"])
    return [i for i, margin in enumerate(case["margins"]) if margin >= SURE and top1[i] != case["ids"][i]]


def test_the_page_answers_a_question_with_the_ids_of_fp32(smol_page):
    tokens = []
    smol_page.page.expose_function("sawToken", lambda text: tokens.append(text))
    smol_page.page.evaluate("void app.on('token', (event) => window.sawToken(event.text))")
    smol_page.say(FRANCE["messages"][0]["content"])
    smol_page.answered()
    assert smol_page.answer() == FRANCE["text"] == "".join(tokens)
    assert len(tokens) >= len(FRANCE["ids"]) - 1
    value = smol_page.call("chat", {"messages": FRANCE["messages"], "options": {"max_new": 16}})["value"]
    assert value["prompt_ids"] == FRANCE["prompt_ids"]
    assert (value["ids"], value["text"], value["finish_reason"]) == (FRANCE["ids"], FRANCE["text"], "stop")
    assert value["dispatches_per_token"] <= 185


@pytest.mark.parametrize("index", range(len(CASES)))
def test_forced_ids_agree_in_chromium(smol_page, index):
    case = CASES[index]
    value = smol_page.call("chat", {"messages": case["messages"], "force_ids": case["ids"]})["value"]
    assert value["prompt_ids"] == case["prompt_ids"]
    assert disagreements(case, value["top1"]) == []


def test_forced_ids_agree_in_chromium_with_default_limits(open_page):
    opened = open_page("?limits=default").ready()
    info = opened.call("info")["value"]
    assert info["features"] == [] and info["limits"]["storage_buffers"] == 8 and info["limits"]["storage_binding_bytes"] == 128 << 20
    for case in CASES:
        value = opened.call("chat", {"messages": case["messages"], "force_ids": case["ids"]})["value"]
        assert disagreements(case, value["top1"]) == []
    opened.page.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CASES)))
def test_forced_ids_agree_in_firefox(dist_dir, firefox_path, tmp_path, index):
    """Through the command that a person would type."""
    case = CASES[index]
    result = command(tmp_path, case, "--browser", "firefox")
    assert result["prompt_ids"] == case["prompt_ids"] and result["ids"] == case["ids"]
    assert disagreements(case, result["top1"]) == []


def test_the_chat_command_streams_the_answer_and_ends_with_one_json_line(dist_dir, chromium_path, tiny_chat):
    sampling = ["--temperature", "0.8", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.01", "--repetition-penalty", "1.1", "--seed", "3"]
    flags = ["--model", str(tiny_chat / "tiny-chat.gguf"), "--system", "Be brief.", "--max-new", "6", "--no-build", "--json", *sampling]
    done = subprocess.run([sys.executable, str(ROOT / "build.py"), "chat", "Hello", *flags], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    streamed, _, line = done.stdout.rstrip("\n").rpartition("\n")
    result = json.loads(line)
    assert streamed == result["text"] and len(result["ids"]) == 6
    assert result["finish_reason"] == "length" and result["adapter"] and result["bytes_loaded"] > 0
    assert result["ttft_ms"] > 0 and result["decode_tok_s"] > 0 and result["prefill_tok_s"] > 0


def command(folder: Path, case: dict, *flags: str) -> dict:
    """The last line of `build.py chat --json` with the case's messages and forced ids."""
    (folder / "messages.json").write_text(json.dumps(case["messages"]))
    (folder / "ids.json").write_text(json.dumps(case["ids"]))
    files = ["--messages", str(folder / "messages.json"), "--force-ids", str(folder / "ids.json")]
    line = [sys.executable, str(ROOT / "build.py"), "chat", "--no-build", "--json", "--timeout", "400", *files, *flags]
    done = subprocess.run(line, capture_output=True, text=True, timeout=420)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
