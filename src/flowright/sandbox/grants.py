"""Files a candidate may read: the standard library, numpy and sympy, system libraries; and the
settings of a zygote.

Computed in the trusted process, enforced in the children. The rest of site-packages is closed: some
packages carry the answers to the benchmarks.
"""

import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flowright.sandbox.reports import Limits

CANDIDATES = ("numpy", "numpy.libs", "sympy", "mpmath")
GRADERS = ("math_verify", "latex2sympy2_extended", "antlr4")  # for grading's own programs
_HIDDEN = frozenset({"site-packages", "dist-packages", "test", "idlelib", "ensurepip"})
_SYSTEM = ("/dev/zero", "/dev/urandom", "/usr/share/zoneinfo", "/etc/ld.so.cache")
# What the extension modules of Python, numpy and their builds elsewhere (conda) are linked with.
_LIBRARIES = re.compile(
    r"(ld-linux.*|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|gfortran|quadmath|gomp|iomp5|atomic|z|bz2|"
    r"lzma|zstd|ffi|ssl|crypto|sqlite3|expat|uuid|readline|ncursesw?|tinfow?|panelw?|gmp|mpdec|"
    r"crypt|nsl|tirpc|gdbm|db|openblas|blas|cblas|lapack|mkl_.*))([-.].*)?\.so(\..*)?"
)


@dataclass(frozen=True, slots=True)
class Grants:
    """``readable`` maps files and trees to where they really are (beyond symbolic links);
    ``listable`` are folders whose names may be read, ``path`` those to add to sys.path."""

    readable: dict[str, str]
    listable: tuple[str, ...]
    path: tuple[str, ...]


@cache
def grants(packages: tuple[str, ...] = CANDIDATES) -> Grants:
    """The grants for this interpreter and environment; packages that are missing are left out."""
    libraries = _library_folders()
    sites = sorted({str(site) for site in map(site_of, packages) if site})
    readable = [*_standard_library(libraries), *_SYSTEM, *_system_libraries()]
    for site in sites:
        readable += [str(Path(site, name)) for name in packages if Path(site, name).exists()]
    listable = [*map(str, libraries), *sites]
    real = {path: str(Path(path).resolve()) for path in outermost(readable)}
    return Grants(real, tuple(listable), tuple(sites))


def outermost(paths: Iterable[str]) -> list[str]:
    """Drop paths below others: those are mounted read-only with the folder above them."""
    known = dict.fromkeys(paths)
    return [path for path in known if not any(str(above) in known for above in Path(path).parents)]


def _library_folders() -> list[Path]:
    paths = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    return sorted(paths | {Path(os.__file__).parent})


def _standard_library(folders: list[Path]) -> list[str]:
    """Entry by entry: site-packages often lies in the same folder."""
    return [
        str(entry)
        for folder in folders
        if folder.is_dir()
        for entry in sorted(folder.iterdir())
        if entry.name not in _HIDDEN
    ]


def _system_libraries() -> list[str]:
    """The shared libraries that extension modules may need, from the folders that this process has
    any mapped from; file by file, since such a folder may hold far more."""
    folders = {str(Path(sys.base_prefix, "lib"))}
    with Path("/proc/self/maps").open() as lines:
        for line in lines:
            path = line.rstrip().rpartition(" ")[2]
            if ".so" in path and path.startswith(("/lib", "/usr/lib")):  # not a package's own
                folders.add(str(Path(path).parent))
    return sorted(
        str(file)
        for folder in folders
        if Path(folder).is_dir()
        for file in Path(folder).iterdir()
        if _LIBRARIES.fullmatch(file.name) and file.is_file()
    )


def site_of(package: str) -> Path | None:
    """The folder that holds an installed top-level package; it is not imported."""
    if "." in package:
        return None
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]).parent


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


def packages_for(source: str) -> Kind:
    """Guess by sight which packages to have imported beforehand: it matters for speed alone."""
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
    """Return a folder where programs look for temporary files and that hides nothing granted."""
    parents = {str(parent) for path in granted for parent in Path(path).parents}
    return next((n for n in ("/tmp", "/var/tmp", "/usr/tmp") if n not in parents), "/scratch")
