"""`build.py plan`: a line a dispatch of a checkpoint's plan, from its header alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from jird.engine.cli_plan import main

from tests.tiny import Tiny

FOLDER = Path(__file__).parent.parent / "golden/llama/gqa"


@pytest.fixture
def tiny(tmp_path):
    return str(Tiny().write(tmp_path / "tiny.gguf"))


def lines(capsys, *arguments) -> list[str]:
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_every_dispatch_has_a_line_and_the_last_line_counts_them(tiny, capsys):
    out = lines(capsys, tiny)
    assert out[-1] == "dispatches_per_token: 14"
    assert [line.split()[0] for line in out[:-2]] == [str(i) for i in range(14)]
    assert out[0].split()[1] == "embed/int8[plain]" and out[-3].split()[1].startswith("step/advance_greedy")


@pytest.mark.parametrize("arguments, kernel", [
    (["--features", "f16,subgroups"], "int4/matvec_norm[subgroup]"), (["--features", ""], "int4/matvec_norm[tree]"),
    (["--software"], "int4/matvec_norm[column]"),
    (["--sampled"], "sample/penalize"), (["--long"], "attention/partial"), (["--prefill", "32"], "int4/matmul[tile]"), (["--lanes", "4"], "ROWS=4"),
    (["--passes", ""], "elementwise/swiglu"), (["--max-storage-buffers", "6"], "kv/append")])
def test_options_show_in_the_plan(tiny, capsys, arguments, kernel):
    assert kernel in "\n".join(lines(capsys, tiny, *arguments))


@pytest.mark.parametrize("path", [FOLDER, FOLDER / "model.safetensors"], ids=["folder", "file"])
def test_a_checkpoint_in_hf_form_has_a_plan_too(capsys, path):
    assert "dense/matvec_norm" in "\n".join(lines(capsys, path))


@pytest.mark.parametrize("arguments, words", [(["--max-storage-buffers", "3"], "3 storage buffers"), (["--passes", "all"], "passes ['all'] are not known"),
                                              (["--lanes", "9"], "slots is 9"), (["--features", "f16,sub"], "sub"), (["--long", "--context", "256"], "256")])
def test_what_cannot_be_planned_is_said_in_a_sentence(tiny, capsys, arguments, words):
    assert main([tiny, *arguments]) == 1
    said = capsys.readouterr()
    assert words in said.err and said.err.startswith("build.py plan: ") and said.out == ""


def test_a_file_that_is_no_checkpoint_or_not_there_is_said(tmp_path, capsys):
    (tmp_path / "page.gguf").write_text("<!doctype html><p>404</p>")
    for path, words in ((tmp_path / "page.gguf", "HTML page"), (tmp_path / "none.gguf", "No such file"), (tmp_path, "model.safetensors")):
        assert main([str(path)]) == 1
        assert words in capsys.readouterr().err
