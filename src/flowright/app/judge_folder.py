"""A judge that was trained, from what training or exporting left of it: a run, a checkpoint, an
adapter, a folder of Hugging Face's, files of verl's. Loaded to be asked, not to be trained.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoTokenizer
from transformers.utils import logging

from flowright.config.policy import PolicySection
from flowright.core.errors import ConfigError
from flowright.environments.judging.serving import FORM_FILE, JudgeForm, form_of_run, read_form
from flowright.judging.trained.calibration import FILE as CALIBRATION, Calibration, read_calibration
from flowright.policy.adapter import CONFIG_FILE
from flowright.policy.export.model import export_of
from flowright.policy.export.source import Kind, Source, find_source
from flowright.policy.model import Policy, choose_device, policy_of
from flowright.policy.scalar import prepare_scalar

_SCORES = "ForSequenceClassification"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class JudgeFolder:
    """A judge's files. ``place``: where the calibration of its weights stands. ``form``: how one
    that writes is asked; None where nothing in them says it."""

    source: Source
    place: Path
    form: JudgeForm | None
    calibration: Calibration

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def scores(self) -> bool:
        """Whether it scores answers, by its files alone."""
        adapter = self.source.kind is Kind.ADAPTER
        folder = self.source.folder / ("huggingface" if self.source.kind is Kind.SHARDS else "")
        config = _json(folder / (CONFIG_FILE if adapter else "config.json"))
        if adapter:
            return config.get("task_type") == "SEQ_CLS"
        return any(str(name).endswith(_SCORES) for name in config.get("architectures") or ())


@dataclass(frozen=True, slots=True)
class LoadedJudge:
    """``longest``: tokens of a text that its config says it takes."""

    policy: Policy
    scores: bool
    longest: int | None


def find_judge(path: Path) -> JudgeFolder:
    """What a folder says of the judge in it; nothing is loaded. Raises RunError where there is
    none, DataError for files about it that cannot be read."""
    return judge_of(find_source(path))


def judge_of(source: Source) -> JudgeFolder:
    """:func:`find_judge` of what was found."""
    place = source.folder
    if (place.parent / "manifest.json").is_file():  # a checkpoint's adapter/ or model/
        place = place.parent
    form = read_form(place / FORM_FILE) or form_of_run(source.run)
    return JudgeFolder(source, place, form, read_calibration(place))


def load_judge(found: JudgeFolder, device: str = "auto", base: str | None = None) -> LoadedJudge:
    """The judge itself. An adapter is added to its base (``base``, where that is not what its files
    name) in float32. Raises RunError or ConfigError for what cannot be loaded."""
    logging.disable_progress_bar()
    source = found.source
    export = export_of(source, base, None, merge=False)
    kind = (export.kind.architectures or [""])[0]
    if not kind.endswith((_SCORES, "ForCausalLM")) or (
        kind.endswith(_SCORES) and export.kind.num_labels != 1
    ):
        raise ConfigError(
            f"{source.name}: {kind or 'no model'}; a judge is a language model, or one of "
            f"AutoModel{_SCORES} with one label"
        )
    scores = kind.endswith(_SCORES)
    section = _section(source.run, scores, device)
    where = choose_device(section)
    dtype = getattr(torch, str(section.on(where.type).dtype))
    model = export.load(torch.float32 if export.adapter is not None else dtype)
    if isinstance(model, PeftModel):
        merged: Any = model.merge_and_unload()
        model = merged.to(dtype)
    folders = [one for one in export.about if any((one / name).is_file() for name in _TOKENIZER)]
    if not folders:
        raise ConfigError(f"{source.name}: no tokenizer beside it; export it, or copy its base's")
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    if scores:
        prepare_scalar(model, tokenizer, fresh=False)
    policy = policy_of(model.to(where), tokenizer, section, 0, source.name)
    longest = getattr(export.kind.get_text_config(), "max_position_embeddings", None)
    return LoadedJudge(policy, scores, longest)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error


def _section(run: Mapping[str, Any], scores: bool, device: str) -> PolicySection:
    """Precision and layers as in training, where that is known."""
    trained = run.get("policy", {})
    kept = {key: trained[key] for key in ("dtype", "lora") if trained.get(key) is not None}
    head = "score" if scores else "language_model"
    return PolicySection.model_validate({**kept, "head": head, "device": device})


def copied_beside(source: Source, out: Path) -> list[str]:
    """Put what else a judge needs beside its exported weights: how it is asked, and how sure it may
    be. Returns what was written, a line each."""
    found = judge_of(source)
    told = []
    if found.form is not None:
        text = json.dumps(found.form.model_dump(), indent=2)
        (out / FORM_FILE).write_text(text + "\n", encoding="utf-8")
        told.append(f"{FORM_FILE}: how the judge is asked")
    if found.calibration.is_fitted:
        (out / CALIBRATION).write_bytes((found.place / CALIBRATION).read_bytes())
        told.append(f"{CALIBRATION}: {found.calibration}")
    return told
