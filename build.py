#!/usr/bin/env python3
"""Build, serve, run and test jird: one command a duty, standard library only (`python3 build.py --help`)."""

import sys

if sys.version_info < (3, 11):
    sys.exit("build.py needs Python 3.11 or later; this is %d.%d. Run it with a newer python3." % sys.version_info[:2])

import argparse
import math
import os
import webbrowser

from tools import chat, rings
from tools import dist as dist_room
from tools.env import BuildError, say
from tools.server import Server, Site

PORT = 8017


def serve(args: argparse.Namespace) -> int:
    """Build dist/ and serve it until Ctrl-C."""
    dist = dist_room.build()
    dist_room.report(dist)
    try:
        server = Server(Site(dist), args.port)
    except OSError as error:
        raise BuildError(f"Port {args.port} of 127.0.0.1 cannot be had ({error.strerror}); choose another with --port.") from None
    with server:
        print(f"jird is at {server.url} (Ctrl-C ends it)", flush=True)
        if not args.no_browser and has_desktop():
            webbrowser.open(server.url)
        try:
            server.wait()
        except KeyboardInterrupt:
            print()
    return 0


def has_desktop() -> bool:
    """Whether a browser window can be shown here."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def build_dist(args: argparse.Namespace) -> int:
    """Build dist/ only."""
    dist_room.report(dist_room.build(with_models=not args.no_models))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="build.py", description="Build, serve, run and test jird.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    one = commands.add_parser("serve", help="fetch what is needed, build dist/ and serve it")
    one.add_argument("--port", type=port, default=PORT, help="0 takes a free one")
    one.add_argument("--no-browser", action="store_true", help="do not open a browser")
    one.set_defaults(run=serve)

    one = commands.add_parser("dist", help="build dist/ only")
    one.add_argument("--no-models", action="store_true", help="leave the weights out")
    one.set_defaults(run=build_dist)

    one = commands.add_parser("chat", help="one answer from the real page in a headless browser")
    one.add_argument("prompt", nargs="?", help="what the person says")
    one.add_argument("--max-new", type=int, default=128, metavar="N", help="tokens at most (default 128)")
    one.add_argument("--system", metavar="TEXT", help="a system message")
    one.add_argument("--messages", metavar="FILE", help="a JSON list of {role, content} instead of a prompt")
    one.add_argument("--raw", action="store_true", help="complete the prompt as it stands, without a chat template")
    one.add_argument("--force-ids", metavar="FILE", help="feed these answer ids one by one; the result has top1")
    one.add_argument("--temperature", type=finite, default=0.0, help="0 is greedy (default)")
    one.add_argument("--top-k", type=int, metavar="K")
    one.add_argument("--top-p", type=finite, metavar="P")
    one.add_argument("--min-p", type=finite, metavar="P")
    one.add_argument("--repetition-penalty", type=finite, metavar="R")
    one.add_argument("--seed", type=int)
    one.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    add_model(one)
    add_browser(one)
    one.set_defaults(run=chat.chat)

    one = commands.add_parser("bench", help="load, prefill and decode speed of the real page")
    add_model(one)
    add_browser(one)
    one.set_defaults(run=chat.bench)

    one = commands.add_parser("kernels", help="every kernel case in the browser against its reference")
    one.add_argument("--only", default="", metavar="TEXT", help="only kernels whose name begins with this")
    add_browser(one)
    one.set_defaults(run=chat.kernels)

    one = commands.add_parser("plan", help="the decode plan of a model, a line a dispatch; needs no GPU")
    one.add_argument("model", help="a bundled model, a GGUF file or a checkpoint folder")
    one.add_argument("--features", default="", metavar="f16,subgroups", help="features the device is taken to have")
    one.add_argument("--max-storage-buffers", type=int, default=8, metavar="N")
    one.set_defaults(run=rings.plan)

    one = commands.add_parser("make-checkpoint", help="make a small checkpoint for tests in .cache/checkpoints")
    one.add_argument("name", choices=("tiny-chat",))
    one.set_defaults(run=rings.make_checkpoint)

    one = commands.add_parser("test", help="install what the tests need and run all rings; more arguments go to pytest")
    one.set_defaults(run=rings.test)
    return top


def port(text: str) -> int:
    """A TCP port. Raises: ValueError outside 0 to 65535."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


def finite(text: str) -> float:
    """A number that JSON can carry to the page. Raises: ValueError for NaN and infinities."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def add_model(command: argparse.ArgumentParser) -> None:
    """The flag that names a model."""
    command.add_argument("--model", default="smollm2", help="a bundled model, a GGUF file or a checkpoint folder")


def add_browser(command: argparse.ArgumentParser) -> None:
    """The flags of a headless run."""
    command.add_argument("--browser", choices=("chromium", "firefox"), default="chromium")
    command.add_argument("--browser-path", metavar="FILE", help="this browser instead of the one found")
    command.add_argument("--browser-flag", action="append", default=[], metavar="FLAG", help="one more Chromium flag")
    command.add_argument("--gpu", choices=("software", "nvidia"), default="software")
    command.add_argument("--f16", action="store_true", help="with --gpu nvidia: let Chromium show shader-f16")
    command.add_argument("--limits", choices=("default",), help="WebGPU's default limits and no features")
    command.add_argument("--timeout", type=finite, default=1800, metavar="SECONDS")
    command.add_argument("--no-build", action="store_true", help="use dist/ as it stands")
    command.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")


def main(argv: list) -> int:
    """Run one command; a BuildError becomes one sentence and exit status 1."""
    top = parser()
    args, rest = top.parse_known_args(argv)
    if rest and args.command != "test":
        top.error("unrecognized arguments: " + " ".join(rest))
    args.rest = rest
    try:
        return args.run(args)
    except BuildError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
