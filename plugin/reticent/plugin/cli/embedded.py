"""`reticent embedded`: the server that needs nothing but this machine; `make serve`, `make demo` and their like."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from reticent.plugin.cli import embedded_making as making
from reticent.plugin.cli.common import fail, load_or_exit, say
from reticent.plugin.cli.serve import serve_vllm
from reticent.plugin.embedded.demo import play
from reticent.plugin.embedded.engine import engine_arguments, set_engine_environment
from reticent.plugin.embedded.model import MODEL_NAME, ModelMissing, convert, is_converted
from reticent.plugin.embedded.state import State, prepare
from reticent.plugin.embedded.welcome import welcome

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="The embedded server: SmolLM2, its reward head, its certificate.")

_FOLDER = Path("deploy/embedded")
FolderOption = Annotated[Path, typer.Option(help="Folder with the embedded configuration, head and certificate.")]
StateOption = Annotated[Path, typer.Option(help="Folder for model, keys and ledger.")]


@app.command("setup")
def setup(folder: FolderOption = _FOLDER, state: StateOption = Path(".reticent")) -> None:
    """Convert the model and make keys, once. Does nothing where that is done."""
    _prepare(folder, state)


@app.command("serve")
def serve(
    folder: FolderOption = _FOLDER, state: StateOption = Path(".reticent"), config: str = "reticent.yaml"
) -> None:
    """Set everything up that is not there yet, serve, and print how to ask. Ctrl-C stops what this started."""
    prepared = _prepare(folder, state)
    path = folder / config
    settings = load_or_exit(path)
    set_engine_environment()
    status = serve_vllm(
        str(prepared.model),
        engine_arguments(),
        path,
        settings,
        on_ready=lambda: typer.echo(welcome(settings, prepared.keys)),
        log=prepared.folder / "vllm.log",
    )
    raise typer.Exit(status)


@app.command("demo")
def demo(folder: FolderOption = _FOLDER, state: StateOption = Path(".reticent")) -> None:
    """Play the story against the running embedded server; exit 1 if any step went otherwise than told."""
    prepared = prepare(state, folder / "tenants.yaml")
    os.environ.update(prepared.environment())
    settings = load_or_exit(folder / "reticent.yaml")
    if not play(f"{settings.server.local_url}/v1", settings.model.name, prepared.keys):
        raise typer.Exit(1)


@app.command("reward-head")
def reward_head(folder: FolderOption = _FOLDER, state: StateOption = Path(".reticent")) -> None:
    """Draw preference pairs (or take those in the folder), train the head, write it and its report."""
    making.reward_head(_prepare(folder, state), folder)


@app.command("development")
def development(folder: FolderOption = _FOLDER, state: StateOption = Path(".reticent")) -> None:
    """Accuracy, and the scores' AUC and risk, on the development split."""
    making.development(_prepare(folder, state), folder)


@app.command("certificate")
def certificate(
    target_risk: Annotated[float, typer.Option(help="Largest expected loss of accepted answers, r*.")] = 0.05,
    folder: FolderOption = _FOLDER,
    state: StateOption = Path(".reticent"),
) -> None:
    """Calibrate through a running server and write certificate.json; exit 1 if nothing was certified."""
    making.certificate(_prepare(folder, state), folder, target_risk)


def _prepare(folder: Path, state: Path) -> State:
    if not (folder / "tenants.yaml").is_file():
        raise fail(f"{folder} is not the embedded folder: run this in the repository, or give --folder")
    prepared = prepare(state, folder / "tenants.yaml")
    os.environ.update(prepared.environment())
    if not is_converted(prepared.model):
        if shutil.disk_usage(state).free < 1_000_000_000:
            raise fail(f"{state}: less than 1 GB is free; the converted model needs 0.3 GB and its making twice that")
        say(f"converting {MODEL_NAME} (once, about half a minute)")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            convert(prepared.model)
        except ModelMissing as error:
            raise fail(str(error)) from None
    return prepared
