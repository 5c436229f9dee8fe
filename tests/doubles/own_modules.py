"""Modules of a user's own, beside which a test runs."""

from pathlib import Path

import pytest


def import_own(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """Write the module ``name`` into a folder, and work and import there."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
