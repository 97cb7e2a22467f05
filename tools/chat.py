"""build.py chat, bench and kernels: make the job, run the page, show what it reports."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from urllib.parse import urlencode

from tools import dist as dist_room
from tools import pins
from tools.browsers import Choice
from tools.env import DIST, BuildError, named_path, say
from tools.jobs import PageRun, run_page

RESULT_FIELDS = (
    "prompt_ids",
    "ids",
    "text",
    "finish_reason",
    "ttft_ms",
    "prefill_tok_s",
    "decode_tok_s",
    "dispatches_per_token",
    "adapter",
    "features",
    "load_ms",
    "bytes_loaded",
)
OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
CHECKPOINT_SUFFIXES = {".json", ".safetensors", ".gguf", ".jinja", ".model", ".txt"}


def job_model(name: str) -> tuple[dict, dict[str, Path]]:
    """The job's model and the mounts it needs, from a bundled name or a path to a GGUF file or a checkpoint folder.

    Raises: BuildError when it is neither, or dist/ was built without models.
    """
    if name in {model.name for model in pins.MODELS}:
        manifest = json.loads((DIST / "manifest.json").read_text(encoding="utf-8"))
        for entry in manifest["models"]:
            if entry["name"] == name:
                return {key: entry[key] for key in ("name", "title", "url", "bytes", "sha256")}, {}
        raise BuildError(f"dist/ was built without {name}.")
    path = named_path(name)
    if path is None:
        bundled = ", ".join(model.name for model in pins.MODELS)
        raise BuildError(f"--model {name[:200]}: no such file or folder, and no bundled model of that name (bundled: {bundled}).")
    mount = re.sub(r"[^\w.-]", "_", path.resolve().name, flags=re.ASCII)
    entry = {"name": path.resolve().name, "title": path.resolve().name}
    if path.is_file():
        return entry | {"url": f"local/{mount}", "bytes": path.stat().st_size}, {mount: path.resolve()}
    files = {p.name: p.stat().st_size for p in sorted(path.iterdir()) if p.is_file() and p.suffix in CHECKPOINT_SUFFIXES}
    if not files:
        raise BuildError(f"{path} holds no checkpoint: no .json, .safetensors or .gguf file is in it.")
    return entry | {"url": f"local/{mount}/", "files": files, "bytes": sum(files.values())}, {mount: path.resolve()}


def chat_job(args: argparse.Namespace) -> dict:
    """The job of the chat command without its model (docs/architecture.md, Jobs)."""
    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    options |= {"max_new": args.max_new, "stop": args.stop}
    job: dict = {"op": "chat", "options": options}
    if args.raw:
        if args.prompt is None or args.messages or args.system:
            raise BuildError("--raw completes the prompt as it stands: give a prompt, and neither --messages nor --system.")
        job["raw"] = args.prompt
    else:
        job["messages"] = _messages(args)
    if args.force_ids is not None:
        ids = read_json(args.force_ids, "--force-ids")
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise BuildError(f"--force-ids {args.force_ids}: a JSON list of token ids is expected.")
        job["force_ids"] = ids
    return job


def _messages(args: argparse.Namespace) -> list[dict]:
    if (args.prompt is None) == (args.messages is None):
        raise BuildError("Give a prompt or --messages FILE, one of the two.")
    messages = [{"role": "user", "content": args.prompt}]
    if args.messages is not None:
        messages = read_json(args.messages, "--messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in messages):
            raise BuildError(f"--messages {args.messages}: a JSON list of objects with role and content is expected.")
    if args.system is not None:
        messages = [{"role": "system", "content": args.system}, *messages]
    return messages


def read_json(path: str, flag: str):
    """The JSON value of a file named on the command line. Raises: BuildError naming the flag."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BuildError(f"{flag} {path} cannot be read as JSON ({error}).") from None


def chat(args: argparse.Namespace) -> int:
    """Run one chat in the real page; the text streams to stdout, --json adds the result as the last line."""
    job = chat_job(args)
    _build(args)
    job["model"], mounts = job_model(args.model)
    query = {"job": "1"} | ({"limits": args.limits} if args.limits else {})
    screen = Screen()
    result = run_page(_page_run(args, f"index.html?{urlencode(query)}", job, mounts), screen.show)
    screen.end()
    if result["ev"] == "error":
        return _failed(result, args.json)
    missing = [name for name in RESULT_FIELDS if name not in result]
    if missing:
        raise BuildError(f"The page's result lacks {', '.join(missing)}.")
    say(
        f"loaded in {result['load_ms'] / 1000:.1f} s, first token after {result['ttft_ms']:.0f} ms, prefill "
        f"{_rate(result['prefill_tok_s'])}, decode {_rate(result['decode_tok_s'])}, {result['dispatches_per_token']} dispatches "
        f"a token, finish: {result['finish_reason']}, adapter: {result['adapter']}"
    )
    if args.json:
        print(json.dumps(_figures(result), ensure_ascii=False), flush=True)
    return 0


def bench(args: argparse.Namespace) -> int:
    """Run the bench page and print its figures."""
    _build(args)
    model, mounts = job_model(args.model)
    query = {"auto": "1", "model": model["url"]} | ({"limits": args.limits} if args.limits else {})
    result = run_page(_page_run(args, f"bench.html?{urlencode(query)}", {"op": "bench", "model": model}, mounts), _show_leg)
    if result["ev"] == "error":
        return _failed(result, args.json)
    print(json.dumps(_figures(result), ensure_ascii=False) if args.json else "\n".join(_table(_figures(result))), flush=True)
    return 0


def kernels(args: argparse.Namespace) -> int:
    """Run the kernel cases in the page; exit status 1 when one fails or none ran."""
    _build(args)
    query = {"auto": "1"} | ({"only": args.only} if args.only else {}) | ({"limits": args.limits} if args.limits else {})
    result = run_page(_page_run(args, f"kernels.html?{urlencode(query)}", {"op": "kernels"}, {}), _show_case)
    if result["ev"] == "error":
        return _failed(result, args.json)
    if args.json:
        print(json.dumps(_figures(result), ensure_ascii=False), flush=True)
    say(f"{result['passed']} kernel cases passed, {result['failed']} failed, {result['skipped']} skipped on {result['adapter']}")
    return 0 if result["passed"] and not result["failed"] else 1


class Screen:
    """Chat's output: progress on stderr, text on stdout as it arrives."""

    def __init__(self) -> None:
        self._stage = ""
        self._has_text = False
        self._is_terminal = sys.stderr.isatty()
        self._line_open = False

    def show(self, event: dict) -> None:
        """One report of the page."""
        if event["ev"] == "token":
            self._close_line()
            print(event["text"], end="", flush=True)
            self._has_text = self._has_text or bool(event["text"])
        elif event["ev"] == "progress":
            self._progress(event)

    def _progress(self, event: dict) -> None:
        stage, done, total = event.get("stage", ""), event.get("bytes", 0), event.get("total", 0)
        line = stage + (f" {done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else "")
        if self._is_terminal:
            print(f"\r\x1b[K[jird] {line}", end="", file=sys.stderr, flush=True)
            self._line_open = True
        elif stage != self._stage:
            say(stage)
        self._stage = stage

    def end(self) -> None:
        """Close the lines that are open."""
        self._close_line()
        if self._has_text:
            print(flush=True)

    def _close_line(self) -> None:
        if self._line_open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._line_open = False


def _page_run(args: argparse.Namespace, page: str, job: dict, mounts: dict[str, Path]) -> PageRun:
    path = Path(args.browser_path) if args.browser_path else None
    choice = Choice(args.browser, path, args.gpu, args.f16, tuple(args.browser_flag))
    return PageRun(DIST, page, job, mounts, choice, args.timeout)


def _build(args: argparse.Namespace) -> None:
    if not args.no_build:
        dist_room.build()
    elif not (DIST / "manifest.json").exists():
        raise BuildError("--no-build takes dist/ as it stands, but there is none; run `python3 build.py dist` first.")


def _figures(result: dict) -> dict:
    return {key: value for key, value in result.items() if key not in ("ev", "done")}


def _failed(error: dict, is_json: bool) -> int:
    say(f"{error.get('message', 'the page failed')} {error.get('hint', '')}".strip())
    if is_json:
        print(json.dumps({"error": {key: error.get(key, "") for key in ("code", "message", "hint")}}), flush=True)
    return 1


def _rate(tok_s: float | None) -> str:
    return "-" if tok_s is None else f"{tok_s:.2f} tok/s"


def _show_leg(event: dict) -> None:
    if event["ev"] == "leg":
        say(", ".join(_table({key: value for key, value in event.items() if key != "ev"})))


def _show_case(event: dict) -> None:
    if event["ev"] == "case" and not event["ok"]:
        say(f"FAILED {event['kernel']} {event['case']}: {event.get('message', '')}")


def _table(figures: dict) -> list[str]:
    return [f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}" for key, value in figures.items()]
