"""The command line's jobs and the runner: what the page is given, what it may report, and how a run can fail."""

import json
import sys
import threading

import pytest

import build
from tools import browsers, chat, jobs
from tools.env import BuildError

# A browser for the runner: a program that is given the page's address, as a real one is.
FAKE = """#!{python}
import json, sys, time, urllib.request
url = sys.argv[-1]
base, page = url.rsplit("/", 1)
def post(*events):
    body = "\\n".join(map(json.dumps, events)).encode()
    urllib.request.urlopen(urllib.request.Request(base + "/report", body, method="POST")).read()
{body}
"""


@pytest.fixture
def fake_run(tmp_path):
    """A function (body of the fake browser, **PageRun fields) -> PageRun."""
    root = tmp_path / "dist"
    root.mkdir()
    (root / "index.html").write_text("page")

    def make(body: str, **fields) -> jobs.PageRun:
        program = tmp_path / "headless-fake"
        program.write_text(FAKE.format(python=sys.executable, body=body))
        program.chmod(0o755)
        return jobs.PageRun(root, "index.html?job=1", choice=browsers.Choice(path=program), **fields)

    return make


def job_of(*argv: str) -> dict:
    args, _ = build.parser().parse_known_args(["chat", *argv])
    return chat.chat_job(args)


def test_page_gets_the_job_and_its_last_report_is_returned(fake_run):
    body = """
job = json.load(urllib.request.urlopen(base + "/job"))
post({"ev": "token", "text": "a"}, {"ev": "token", "text": "b"})
post({"ev": "result", "job": job, "page": page, "done": True})
time.sleep(60)
"""
    events = []
    last = jobs.run_page(fake_run(body, job={"op": "chat"}), events.append)
    assert last == {"ev": "result", "job": {"op": "chat"}, "page": "index.html?job=1", "done": True}
    assert [event["ev"] for event in events] == ["token", "token", "result"]


def test_browser_that_dies_is_a_sentence_with_its_console(fake_run):
    body = "print('[1:2:INFO:CONSOLE:3] \"worker: out of words\", source: x (1)'); sys.exit(7)"
    with pytest.raises(BuildError, match=r"ended with status 7 before index.html\?job=1 was done; its console said: .*out of words"):
        jobs.run_page(fake_run(body))


def test_browser_that_reports_and_leaves_at_once_is_still_heard(fake_run):
    assert jobs.run_page(fake_run('post({"ev": "error", "done": True})'))["ev"] == "error"


def test_silent_page_is_given_up(fake_run):
    with pytest.raises(BuildError, match="reported nothing for 1 s"):
        jobs.run_page(fake_run("time.sleep(60)", silence_s=0.6))


def test_page_that_never_ends_is_given_up_though_it_reports(fake_run):
    body = 'while True: post({"ev": "progress", "stage": "x"}); time.sleep(0.05)'
    with pytest.raises(BuildError, match="did not finish"):
        jobs.run_page(fake_run(body, timeout_s=0.6))


def test_missing_page_and_missing_browser_are_sentences(fake_run, tmp_path):
    run = fake_run("pass")
    with pytest.raises(BuildError, match="has no page bench.html"):
        jobs.run_page(jobs.PageRun(run.dist, "bench.html?auto=1"))
    with pytest.raises(BuildError, match="cannot be started"):
        jobs.run_page(jobs.PageRun(run.dist, "index.html", choice=browsers.Choice(path=tmp_path / "none")))


def test_runner_leaves_no_thread_and_no_profile_behind(fake_run, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "profiles"))
    (tmp_path / "profiles").mkdir()
    before = threading.active_count()
    jobs.run_page(fake_run('post({"ev": "result", "done": True}); time.sleep(60)'))
    assert list((tmp_path / "profiles").iterdir()) == []
    assert threading.active_count() <= before + 1  # a handler thread may still be closing its connection


def test_chat_job_has_only_the_options_that_were_given():
    job = job_of("hi", "--max-new", "5", "--system", "be brief", "--top-k", "3", "--stop", "a", "--stop", "b")
    assert job["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert job["options"] == {"max_new": 5, "stop": ["a", "b"], "temperature": 0.0, "top_k": 3}
    assert "raw" not in job and "force_ids" not in job


def test_raw_prompt_and_forced_ids(tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2]")
    job = job_of("Once", "--raw", "--force-ids", str(ids))
    assert (job["raw"], job["force_ids"]) == ("Once", [1, 2]) and "messages" not in job


def test_messages_come_from_a_file(tmp_path):
    path = tmp_path / "m.json"
    path.write_text(json.dumps([{"role": "user", "content": "é"}]), encoding="utf-8")
    assert job_of("--messages", str(path))["messages"] == [{"role": "user", "content": "é"}]


@pytest.mark.parametrize(
    "argv, sentence",
    [
        ([], "Give a prompt or --messages"),
        (["hi", "--messages", "m"], "one of the two"),
        (["--messages", "/none"], "--messages /none cannot be read"),
        (["hi", "--raw", "--system", "s"], "--raw completes"),
        (["hi", "--force-ids", "/none"], "--force-ids /none cannot be read"),
    ],
)
def test_bad_command_lines_are_sentences(argv, sentence):
    with pytest.raises(BuildError, match=sentence):
        job_of(*argv)


@pytest.mark.parametrize("text", ['{"a": 1}', "[-1]", "[true]", '["1"]'])
def test_forced_ids_must_be_token_ids(tmp_path, text):
    path = tmp_path / "ids.json"
    path.write_text(text)
    with pytest.raises(BuildError, match="list of token ids"):
        job_of("hi", "--force-ids", str(path))


@pytest.mark.parametrize("value", ["nan", "inf", "x"])
def test_numbers_that_json_cannot_carry_are_refused(value, capsys):
    with pytest.raises(SystemExit):
        build.parser().parse_known_args(["chat", "hi", "--temperature", value])
    assert "--temperature" in capsys.readouterr().err


def test_model_path_is_mounted_under_a_plain_name(tmp_path):
    path = tmp_path / "my model.gguf"
    path.write_bytes(b"GGUF")
    model, mounts = chat.job_model(str(path))
    assert model == {"name": "my model.gguf", "title": "my model.gguf", "url": "local/my_model.gguf", "bytes": 4}
    assert mounts == {"my_model.gguf": path}


def test_checkpoint_folder_lists_its_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    (tmp_path / "notes.pdf").write_bytes(b"x")
    model, mounts = chat.job_model(str(tmp_path))
    assert model["files"] == {"config.json": 2, "model.safetensors": 8} and model["bytes"] == 10
    assert model["url"].endswith("/") and list(mounts.values()) == [tmp_path]


def test_unknown_model_names_the_bundled_ones():
    with pytest.raises(BuildError, match=r"--model nope: .*bundled: smollm2"):
        chat.job_model("nope")


def test_unknown_arguments_are_refused_except_by_test(capsys):
    with pytest.raises(SystemExit):
        build.main(["dist", "--frob"])
    assert "--frob" in capsys.readouterr().err


def test_nvidia_run_has_the_toggle_that_shows_f16(tmp_path):
    choice = browsers.Choice(gpu="nvidia", has_f16=True, flags=("--x",))
    command = browsers.chromium_command(tmp_path / "chromium", choice, tmp_path)
    assert "--enable-dawn-features=allow_unsafe_apis,vulkan_enable_f16_on_nvidia" in command
    assert "--headless" in command and command[-1] == "--x"
    assert "--headless" not in browsers.chromium_command(tmp_path / "chromium-headless-shell", choice, tmp_path)


def test_firefox_profile_switches_webgpu_on(tmp_path):
    command = browsers.firefox_command(tmp_path / "firefox", tmp_path)
    prefs = (tmp_path / "user.js").read_text()
    for name in ("dom.webgpu.enabled", "dom.webgpu.workers.enabled", "gfx.webgpu.ignore-blocklist"):
        assert f'user_pref("{name}", true);' in prefs
    assert command[1:] == ["--headless", "--no-remote", "--profile", str(tmp_path)]


RESULT = {name: 1 for name in chat.RESULT_FIELDS} | {"ev": "result", "done": True, "text": "Paris", "top1": [1], "decode_tok_s": None}


@pytest.fixture
def run_command(fake_run, tmp_path, monkeypatch, capsys):
    """A function (fake browser's body, *argv of build.py) -> (exit status, stdout, stderr); dist/ is a folder of the test."""

    def run(body: str, *argv: str) -> tuple[int, str, str]:
        program = fake_run(body).choice.path
        (tmp_path / "dist/manifest.json").write_text('{"models": []}')
        (tmp_path / "dist/kernels.html").write_text("page")
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        monkeypatch.setattr(chat, "DIST", tmp_path / "dist")
        status = build.main([*argv, "--no-build", "--browser-path", str(program)])
        return status, *capsys.readouterr()

    return run


def test_chat_streams_the_text_and_ends_with_one_json_line(run_command, tmp_path):
    body = f'post({{"ev": "token", "text": "Pa"}}); post({{"ev": "token", "text": "ris"}}, {RESULT!r}); time.sleep(60)'
    status, out, err = run_command(body, "chat", "hi", "--json", "--model", str(tmp_path / "m.gguf"))
    text, line = out.splitlines()
    assert (status, text) == (0, "Paris")
    assert json.loads(line) == {key: value for key, value in RESULT.items() if key not in ("ev", "done")}
    assert "finish: 1" in err


def test_page_gets_the_limits_and_the_mounted_model(run_command, tmp_path):
    body = f"""
job = json.load(urllib.request.urlopen(base + "/job"))
weights = urllib.request.urlopen(base + "/" + job["model"]["url"]).read().decode()
post({RESULT!r} | {{"text": page + " " + weights}})
"""
    status, out, _ = run_command(body, "chat", "hi", "--limits", "default", "--json", "--model", str(tmp_path / "m.gguf"))
    assert (status, json.loads(out)["text"]) == (0, "index.html?job=1&limits=default GGUF")


def test_error_of_the_page_is_a_sentence_and_status_1(run_command, tmp_path):
    error = {"ev": "error", "code": "bad_checkpoint", "message": "It is truncated.", "hint": "Download it again.", "done": True}
    status, out, err = run_command(f"post({error!r})", "chat", "hi", "--json", "--model", str(tmp_path / "m.gguf"))
    assert status == 1 and "It is truncated. Download it again." in err
    assert json.loads(out) == {"error": {"code": "bad_checkpoint", "message": "It is truncated.", "hint": "Download it again."}}


def test_result_that_lacks_a_field_is_named(run_command, tmp_path):
    lacking = {key: value for key, value in RESULT.items() if key != "ids"}
    status, _, err = run_command(f"post({lacking!r})", "chat", "hi", "--model", str(tmp_path / "m.gguf"))
    assert status == 1 and "lacks ids" in err


@pytest.mark.parametrize("passed, failed, status", [(3, 0, 0), (3, 1, 1), (0, 0, 1)])
def test_kernels_fail_when_a_case_fails_or_none_ran(run_command, passed, failed, status):
    case = {"ev": "case", "kernel": "norm/rms_norm", "case": "T=1", "ok": False, "message": "off by 2"}
    result = {"ev": "result", "passed": passed, "failed": failed, "skipped": 0, "adapter": "a", "done": True}
    got, _, err = run_command(f"post(*{[case] * failed!r}, {result!r})", "kernels")
    assert got == status and ("norm/rms_norm T=1: off by 2" in err) == bool(failed)


@pytest.mark.parametrize("flag", ["--messages", "--force-ids"])
@pytest.mark.parametrize("content", [b"", b"not json", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}', b"[1, \"x\"]", b"[-1]", b"[null]", b"9" * 6000], ids=lambda content: repr(content[:8]))
def test_a_file_that_holds_something_else_is_a_sentence(flag, content, tmp_path):
    (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(BuildError, match=flag):
        job_of(*([] if flag == "--messages" else ["hi"]), flag, str(tmp_path / "f.json"))


@pytest.mark.parametrize("path", ["", "no/such", "."])
def test_a_file_that_cannot_be_read_is_a_sentence(path):
    with pytest.raises(BuildError, match="--force-ids"):
        job_of("hi", "--force-ids", path)
    with pytest.raises(BuildError, match="--messages"):
        job_of("--messages", path)


@pytest.mark.parametrize("name", ["", "a" * 5000, "a\0b", "~nobody/x", "no/such.gguf", "/dev/null"])
def test_a_model_that_no_path_names_is_a_sentence(name):
    with pytest.raises(BuildError, match="no such file or folder"):
        chat.job_model(name)


@pytest.mark.parametrize("argv", [["serve", "--port", "65536"], ["serve", "--port", "-1"], ["chat", "hi", "--temperature", "nan"], ["chat", "hi", "--timeout", "nan"]])
def test_a_number_that_cannot_be_is_a_usage_error(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        build.main(argv)
    assert ended.value.code == 2 and argv[-2] in capsys.readouterr().err
