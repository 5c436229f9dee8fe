"""``claims.json``: what a study will be held to, written and hashed before its first run. Nothing
is decided here.
"""

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from flowright.core.errors import RunError
from flowright.core.files import disk_errors, write_json
from flowright.study.config import StudyConfig

FILE = "claims.json"
_LISTS = {"claims": "id", "arms": "name"}
"""Lists by what names their entries."""


def claims_of(study: StudyConfig) -> dict[str, Any]:
    """Everything that must not change once results are known: the claims, the control, the
    seeds (one more until it works would be a choice, too), the rate of false alarms, and the arms
    that claims are about, as the study's file has them: addresses that are read from the
    environment are not in it. Other arms may still be added."""
    about = {claim.arm for claim in study.claims} | {claim.against for claim in study.claims}
    names = {study.control, *(name.split("@")[0] for name in about if name)}
    arms = [arm for arm in study.arms if arm.name in names]
    return {
        "study": study.name,
        "control": study.control,
        "seeds": list(study.all_seeds),
        "false_alarms": study.false_alarms,
        "arms": [arm.model_dump(mode="json", exclude={"title"}) for arm in arms],
        "claims": [claim.model_dump(mode="json") for claim in study.claims],
    }


def digest(claims: dict[str, Any]) -> str:
    """SHA-256 of the claims in canonical JSON."""
    return hashlib.sha256(json.dumps(claims, sort_keys=True).encode()).hexdigest()


def settle_claims(study: StudyConfig, out: Path, began: bool) -> dict[str, Any]:
    """Write the claims, or hold them against those that are there; of those that a former version
    wrote, what they have. Raises RunError where they differ and a run of them ``began``, and where
    runs are there without claims."""
    now = claims_of(study)
    path = out / FILE
    before = read_claims(out)
    if before is not None and began:
        now = {key: value for key, value in now.items() if key in before}
    if before is not None and before["sha256"] == digest(now):
        return before
    if began:
        why = "there are none beside its runs" if before is None else _changed(before, now)
        raise RunError(
            f"{path}: the claims were fixed before the first run, and {why}; put them back, or "
            "start a new study with another --out"
        )
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    kept = {"sha256": digest(now), "written": when, **now}
    with disk_errors(path):
        write_json(path, kept)
    return kept


def read_claims(out: Path) -> dict[str, Any] | None:
    """The claims as they were written; None where there are none. Raises RunError where they are
    not those that were hashed."""
    path = out / FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        hashed = {key: kept[key] for key in kept if key not in ("sha256", "written")}
        whole = digest(hashed) == kept["sha256"] and bool(kept["written"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: not as it was written; put it back") from None
    if not whole:
        raise RunError(f"{path}: its SHA-256 is not that of its claims; put it back")
    return kept


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    keys = [key for key in now if now[key] != before.get(key) and key not in _LISTS]
    for listed, named in _LISTS.items():
        old, new = ({each[named]: each for each in told.get(listed, ())} for told in (before, now))
        names = {**old, **new} if listed == "claims" else old.keys() & new.keys()
        keys += [f"{listed}.{name}" for name in names if old.get(name) != new.get(name)]
    return f"{', '.join(keys) or 'their order'} changed since"
