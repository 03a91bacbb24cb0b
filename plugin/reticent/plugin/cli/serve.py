"""`reticent serve`: the reward worker and `vllm serve` with the plugin, as one command."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import httpx
import typer

from reticent.plugin.cli.common import fail, load_or_exit, say, stop
from reticent.plugin.cli.worker import enter_worker
from reticent.plugin.endpoint import CONFIG_VARIABLE
from reticent.plugin.settings import Settings
from reticent.rewards.process import WorkerProcess

__all__ = ["running_vllm", "serve", "serve_vllm", "vllm_command"]

_GUARD = "reticent.plugin.endpoint.RequireReticent"
_REFUSED: dict[tuple[str, ...], str] = {
    ("--host", "--port", "--uds", "--served-model-name", "--api-key", "--generation-config"): (
        "is set from the reticent configuration; leave it out"
    ),
    ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"): (
        "is not supported: put the TLS end in front of this server"
    ),
    # With these no HTTP application of ours would stand, or a file would set options behind our back.
    ("--grpc", "--grpc-port", "--headless", "--config", "--run-batch", "--data-parallel-hybrid-lb", "--omni"): (
        "would start vLLM without the surface that keeps raw answers in; leave it out"
    ),
}
"""Options of `vllm serve` that are refused, and why."""
_READY_SECONDS = 600.0
_DRAIN_SECONDS = 30


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model name or folder, as for `vllm serve`.")],
    reticent_config: Annotated[Path, typer.Option(help="The reticent configuration file.")],
) -> None:
    """Start vLLM with the plugin and the reward worker; every other argument goes to `vllm serve`."""
    settings = load_or_exit(reticent_config)
    raise typer.Exit(serve_vllm(model, context.args, reticent_config, settings))


def check_attachable() -> None:
    """End with a message unless vLLM is here and would find the plugin."""
    if importlib.util.find_spec("vllm") is None:
        raise fail("vLLM is not installed. Install 'reticent[vllm]' (CUDA) or run `make install` (CPU).")
    names = {entry.name for entry in importlib.metadata.entry_points(group="vllm.endpoint_plugins")}
    if "reticent" not in names:
        raise fail(
            "the endpoint plugin 'reticent' is not registered in this environment, so vLLM would serve raw answers. "
            "Reinstall the package (pip install -e .) and try again."
        )


def require_free_port(settings: Settings) -> None:
    """End with a message where something listens already: its answers would be taken for those of vLLM."""
    host, port = settings.server.host, settings.server.port
    if port == 0:
        raise fail("server.port must be a number of its own here, since vLLM is told of it and asked at it")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise fail(f"cannot listen on {host} port {port}: {error.strerror}. Set RETICENT_SERVER__PORT.") from None


def vllm_command(model: str, arguments: Sequence[str], settings: Settings) -> list[str]:
    """The `vllm serve` command line: the operator's arguments, and the guard that refuses to serve without us."""
    for argument in arguments:
        # vLLM takes abbreviations, and underscores for dashes.
        name = argument.partition("=")[0].replace("_", "-")
        if not name.startswith("--") or name == "--":
            continue
        for options, why in _REFUSED.items():
            if any(option.startswith(name) for option in options):
                raise fail(f"{name} {why}")
    return [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model),
        *arguments,
        # Ours come last: of an option given twice vLLM takes the later.
        *("--host", settings.server.host, "--port", str(settings.server.port)),
        *("--served-model-name", settings.model.name),
        # Sampling is what the request and our configuration say, not what a model's folder recommends.
        *("--generation-config", "vllm"),
        *("--middleware", _GUARD),
        # At a stop the engine finishes what was asked, so that open requests settle instead of being forfeited.
        *("--shutdown-timeout", str(_DRAIN_SECONDS)),
        "--disable-uvicorn-access-log",
    ]


def vllm_environment(config: Path) -> dict[str, str]:
    """The environment of `vllm serve`: the plugin allowed and told where its configuration is."""
    environment = dict(os.environ)
    allowed = [name for name in environment.get("VLLM_PLUGINS", "").split(",") if name]
    environment["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*allowed, "reticent"]))
    environment[CONFIG_VARIABLE] = str(config.resolve())
    # vLLM's own key check would stand in front of the tenants' keys.
    environment.pop("VLLM_API_KEY", None)
    # Another front end would serve without our application.
    environment.pop("VLLM_USE_RUST_FRONTEND", None)
    environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    return environment


def serve_vllm(
    model: str,
    arguments: Sequence[str],
    config: Path,
    settings: Settings,
    *,
    on_ready: Callable[[], None] = lambda: None,
    log: Path | None = None,
) -> int:
    """Run worker and vLLM until the end of vLLM, or a signal; return the exit status.

    What vLLM prints goes to `log`, where one is given.
    """
    with contextlib.ExitStack() as stack:
        _interrupt_on_sigterm(stack)
        try:
            process, _ = stack.enter_context(running_vllm(model, arguments, config, settings, log))
            on_ready()
            while process.poll() is None:
                time.sleep(0.3)
        except KeyboardInterrupt:
            say("stopping")
            return 0
        return process.returncode


@contextlib.contextmanager
def running_vllm(
    model: str, arguments: Sequence[str], config: Path, settings: Settings, log: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], WorkerProcess | None]]:
    """Worker (where managed) and vLLM, ready to answer.

    Only processes that were started here are stopped, by their ids.
    """
    check_attachable()
    require_free_port(settings)
    command = vllm_command(model, arguments, settings)
    with contextlib.ExitStack() as stack:
        worker = enter_worker(stack, settings)
        say("starting vLLM (about half a minute on a CPU)")
        output = stack.enter_context(log.open("ab")) if log is not None else None
        process = subprocess.Popen(
            command, env=vllm_environment(config), start_new_session=True, stdout=output, stderr=output
        )
        stack.callback(stop, process)
        try:
            _wait_until_ready(process, settings)
        except typer.Exit:
            if log is not None:
                say(f"the end of {log}:\n" + _tail(log))
            raise
        yield process, worker


def _wait_until_ready(process: subprocess.Popen[bytes], settings: Settings) -> None:
    url = f"{settings.server.local_url}/ready"
    started, told = time.monotonic(), 0.0
    while time.monotonic() - started < _READY_SECONDS:
        if process.poll() is not None:
            raise fail(f"vLLM ended with status {process.returncode} before it was ready")
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(url, timeout=5.0, trust_env=False)
            if answer.status_code == 200:
                if not _is_ours(answer):
                    raise fail(f"something else than reticent answers at {url}; stopping")
                say(f"ready after {time.monotonic() - started:.0f} s")
                return
        if time.monotonic() - told > 10.0:
            told = time.monotonic()
            say(f"waiting for vLLM ({told - started:.0f} s)")
        time.sleep(0.5)
    raise fail(f"vLLM was not ready after {_READY_SECONDS:.0f} s")


def _tail(log: Path, size: int = 4000) -> str:
    return log.read_bytes()[-size:].decode(errors="replace")


def _is_ours(answer: httpx.Response) -> bool:
    try:
        return bool(answer.json()["server"] == "reticent")
    except (ValueError, KeyError, TypeError):
        return False


def _interrupt_on_sigterm(stack: contextlib.ExitStack) -> None:
    """Let SIGTERM and a lost terminal end the command as Ctrl-C does, so that children are stopped."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        stack.callback(signal.signal, number, signal.signal(number, interrupt))
