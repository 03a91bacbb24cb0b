"""The reward worker's process: `python -m reticent.rewards.worker --head HEAD.json --socket PATH`.

It has no database credentials, and opens no connection but to the reward server that its profile names. The secret
comes from the environment variable `RETICENT_WORKER_SECRET`, which it removes from its own environment.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from reticent.accounting.fingerprint import parse_json

from .address import listen_on_loopback, listen_on_socket, require_loopback
from .errors import ProfileInvalid, RewardsError
from .ports import RewardBackend
from .profile import ModelProfile
from .protocol import SECRET_VARIABLE

__all__ = ["main"]

EXIT_REFUSED = 2
"""Exit status when the worker cannot start as it was told to."""
_STDIN = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    secret = os.environ.pop(SECRET_VARIABLE, "")
    try:
        if options.host is not None:
            require_loopback(options.host)
        asyncio.run(_serve(options, secret))
    except (RewardsError, ValueError, OSError) as error:
        print(f"reward worker: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


async def _serve(options: argparse.Namespace, secret: str) -> None:
    # Imported here: these take seconds, and a bad address should not.
    import uvicorn

    from .worker_app import create_app

    app = create_app(_backend(options), secret)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", server_header=False)
    server = uvicorn.Server(config)
    if options.stop_with_stdin:
        _stop_at_end_of_input(server)
    listener = _listener(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal that stopped it once more, for whoever handled it before: that is this handler,
        # where the default would end the process before the socket is removed.
        asyncio.get_running_loop().add_signal_handler(number, lambda: None)
    try:
        await server.serve(sockets=[listener])
    finally:
        listener.close()
        if options.socket is not None:
            options.socket.unlink(missing_ok=True)


def _backend(options: argparse.Namespace) -> RewardBackend:
    from .backends import HeadBackend, build_backend

    if options.profile is None:
        return HeadBackend.load(options.head, model_folder=options.encoder_model, threads=options.threads)
    value = parse_json(options.profile)
    if not isinstance(value, dict):
        raise ProfileInvalid("a profile is a JSON object")
    return build_backend(ModelProfile.from_dict(value), threads=options.threads)


def _listener(options: argparse.Namespace) -> socket.socket:
    if options.socket is not None:
        return listen_on_socket(options.socket)
    return listen_on_loopback(options.host, options.port)


def _stop_at_end_of_input(server: object) -> None:
    """Stop when standard input ends, as it does when the parent dies, however it dies."""

    def watch() -> None:
        # Not `sys.stdin`: its lock would be held by this thread when the interpreter ends, which is a fatal error.
        while os.read(_STDIN, 4096):
            pass
        server.should_exit = True  # type: ignore[attr-defined]

    threading.Thread(target=watch, name="stdin", daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reticent.rewards.worker", description="Serve rewards, locally.")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--head", type=Path, help="the certified head's file")
    model.add_argument("--profile", help="another model's profile, as JSON (`ModelProfile.to_dict`)")
    parser.add_argument("--encoder-model", type=Path, help="folder of the encoder's model (default: its package)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the encoder (default 1)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", type=Path, help="Unix socket to listen on, made with mode 0600")
    where.add_argument("--host", help="loopback address to listen on")
    parser.add_argument("--port", type=int, default=8991, help="port on --host (default 8991)")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends")
    return parser


if __name__ == "__main__":
    sys.exit(main())
