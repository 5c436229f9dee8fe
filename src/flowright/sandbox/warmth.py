"""What a zygote is started with: the packages that it has imported, what it may grant, its user id.

Decides nothing about executions.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowright.sandbox.grants import CANDIDATES, GRADERS, grants, site_of
from flowright.sandbox.reports import Limits

Kind = tuple[str, ...]  # the packages that a zygote has imported beforehand

_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+(numpy|sympy|math_verify)\b", re.MULTILINE)
_WARM_UP = {
    "numpy": "import numpy, numpy.linalg, numpy.random",  # it loads its parts late
    "sympy": "import sympy",
    "math_verify": (
        "from math_verify import parse, verify\n"
        "verify(*(parse(text, parsing_timeout=None) for text in ('$x^2+\\\\frac12$', '$1+x^2$')),"
        " timeout_seconds=None)"
    ),
}
# Far above what user databases and containers hand out: no account of the machine has such an id.
_FIRST_UID, _UIDS = 0x70000000, 1 << 24


def kind_for(source: str) -> Kind:
    """Which packages to have ready: a matter of speed alone, so a guess by sight is enough."""
    found = set(_IMPORTS.findall(source))
    if "math_verify" in found:
        return ("math_verify",)
    return ("numpy", "sympy") if "sympy" in found else ("numpy",) if found else ()


def zygote_config(kind: Kind, layers: Sequence[str], tmp_bytes: int, number: int) -> dict[str, Any]:
    """The configuration of the ``number``-th zygote (see inside/zygote.py)."""
    readable = grants(CANDIDATES + GRADERS if "math_verify" in kind else CANDIDATES)
    return {
        "readable": readable.readable,
        "listable": readable.listable,
        "path": readable.path,
        "warm_up": "\n".join(_WARM_UP[name] for name in kind if site_of(name)),
        "packages": [name for name in kind if site_of(name)],
        "layers": layers,
        "tmp": _tmp_folder([*readable.readable, *readable.listable]),
        "tmp_bytes": tmp_bytes,
        "uid": _FIRST_UID + (os.getpid() * 64 + number) % _UIDS,
        "outside": __file__,  # its children must not be able to read this
        "probe_limits": asdict(Limits()),
    }


def _tmp_folder(granted: Iterable[str]) -> str:
    """Where programs look for a folder for temporary files, and nothing granted would be hidden."""
    parents = {str(parent) for path in granted for parent in Path(path).parents}
    return next((n for n in ("/tmp", "/var/tmp", "/usr/tmp") if n not in parents), "/scratch")
