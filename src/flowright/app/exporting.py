"""Export a trained model as a Hugging Face folder, merged or as an adapter."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from flowright.core.command_line import say
from flowright.core.errors import UserError
from flowright.core.files import atomic_directory, check_writable
from flowright.data.contamination import TrainedOn
from flowright.evaluation.trained_judge import copy_judge_files
from flowright.policy.base_models import Origin
from flowright.policy.export.folder import card, compare, dtype_of, fill, hub_token, push
from flowright.policy.export.model import Export, export_of
from flowright.policy.export.source import ExportSource, Kind, export_id, find_source

_OURS = ("config.json", "adapter_config.json")


@dataclass(frozen=True, slots=True)
class Request:
    """An export on the command line. ``form``: "merge", "adapter", or None for the source's
    default. ``most_bytes``: of one file of weights. ``identity``: print its hash, no more."""

    source: Path
    out: Path | None
    form: str | None = None
    dtype: str | None = None
    overwrite: bool = False
    base: str | None = None
    lora_alpha: float | None = None
    most_bytes: int = 5_000_000_000
    hub: str | None = None
    identity: bool = False


def export_model(request: Request, console: Console) -> int:
    """Write ``request.out``, whole or not at all, and print its contents. Raises UserError for
    mistakes of the user."""
    if request.identity:
        print(_identity(request, find_source(request.source)))
        return 0
    if request.out is None:
        raise UserError("--out: name the folder to write")
    token = hub_token() if request.hub is not None else None
    source = find_source(request.source)
    _check_place(request, source)
    say(console, f"source    {source.name}: {source.kind} in {source.folder}")
    export, form = _planned(request, source)
    dtype = dtype_of(export, request.dtype)
    alone = form == "adapter"
    kept = alone and request.dtype is None
    say(console, f"trained   {export.trained}")
    say(console, f"base      {export.base or 'unknown'}")
    with atomic_directory(request.out) as part:
        notes = [*export.notes, *fill(export, part, dtype, request.most_bytes, alone, kept)]
        notes += copy_judge_files(source, part)
        difference = compare(export, part, dtype, export.adapter)
        for note in notes:
            say(console, f"note      {note}")
        words = f"exported from {source.name}"
        Origin(words, {"id": _identity(request, source)}).write(part)
        if trained_on := _trained_on(source, export):
            trained_on.write(part)
        written = f"{form}, {'as trained' if kept else str(dtype).removeprefix('torch.')}"
        files = sorted(path for path in part.rglob("*") if path.is_file())
        title = request.out.absolute().name
        text = card(title, source, export, written, notes, difference, files)
        (part / "README.md").write_text(text, encoding="utf-8")
    say(
        console,
        f"compared  largest difference of {difference.what} from the source "
        f"{difference.largest:.3g}, of up to {difference.of:.3g}",
    )
    for path in sorted(path for path in request.out.rglob("*") if path.is_file()):
        say(console, f"          {path.stat().st_size:>14,}  {path.relative_to(request.out)}")
    say(console, f"written   {request.out} ({written})")
    if request.hub is not None and token is not None:
        say(console, f"pushed    {push(request.out, request.hub, token)}")
    return 0


def _identity(request: Request, source: ExportSource) -> str:
    settings = (request.form, request.dtype, request.lora_alpha)
    return export_id(source, request.base, settings=settings)


def _trained_on(source: ExportSource, export: Export) -> TrainedOn | None:
    """Facts of source and base for the model card; of the checkpoint, if it stands beside the
    weights."""
    above = source.folder.parent
    beside = [above] if (above / "manifest.json").is_file() else []
    return TrainedOn.gathered([*beside, *export.about])


def _planned(request: Request, source: ExportSource) -> tuple[Export, str]:
    """Select the model and the form to write: ``merged``, ``adapter``, ``whole``, or ``base with
    lora_adapter/`` as verl's own merger leaves it."""
    merge = request.form == "merge" or (request.form is None and source.kind is Kind.ADAPTER)
    export = export_of(source, request.base, request.lora_alpha, merge)
    if request.form == "adapter" and export.adapter is None:
        raise UserError(f"--adapter: {source.name} has no adapter, all its weights are whole")
    if export.adapter is not None:
        return export, "adapter" if request.form == "adapter" else "base with lora_adapter/"
    return export, "merged" if export.merged else "whole"


def _check_place(request: Request, source: ExportSource) -> None:
    """Raise UserError if the folder must not be written, before anything is loaded."""
    assert request.out is not None
    out, there = request.out, request.out.resolve()
    for taken in (request.source.resolve(), source.folder.resolve()):
        if there == taken or there in taken.parents:
            raise UserError(f"--out: {out} holds what is to be exported; name another folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not out.is_dir() or not any((out / name).is_file() for name in _OURS):
            raise UserError(f"--out: {out} holds something else; name another folder")
        if not request.overwrite:
            raise UserError(f"--out: {out} holds a model; --overwrite replaces it")
    check_writable(out.parent)
