#!/usr/bin/env python3
"""Build, serve, run and test jird: one command a duty, standard library only (`python3 build.py --help`)."""

import sys

if sys.version_info < (3, 11):
    sys.exit("build.py needs Python 3.11 or later; this is %d.%d. Run it with a newer python3." % sys.version_info[:2])

import argparse
import os
import webbrowser

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
    one.add_argument("--port", type=int, default=PORT)
    one.add_argument("--no-browser", action="store_true", help="do not open a browser")
    one.set_defaults(run=serve)

    one = commands.add_parser("dist", help="build dist/ only")
    one.add_argument("--no-models", action="store_true", help="leave the weights out")
    one.set_defaults(run=build_dist)
    return top


def main(argv: list) -> int:
    """Run one command; a BuildError becomes one sentence and exit status 1."""
    args = parser().parse_args(argv)
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
