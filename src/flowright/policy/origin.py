"""Where the weights of a model folder come from, kept beside them in ``origin.json``: words for
people, and the recipe that they were made by. Knows neither models nor recipes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.files import write_json

FILE = "origin.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """``words``: one line for screens. ``recipe``: plain JSON, all that the weights depend on."""

    words: str
    recipe: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, {"words": self.words, "recipe": self.recipe})


def origin_of(model: str | Path) -> Origin | None:
    """That of a model made on this machine; None for any other folder or name."""
    try:
        kept = json.loads((Path(model) / FILE).read_text(encoding="utf-8"))
        return Origin(str(kept["words"]), dict(kept["recipe"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
