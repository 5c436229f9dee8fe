"""What a candidate may read of the disk: the standard library, numpy and sympy, system libraries.

Computed in the trusted process, enforced in the children. Nothing else of site-packages is among
it: some packages carry the answers to the benchmarks.
"""

import importlib.util
import re
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
    real = {path: str(Path(path).resolve()) for path in dict.fromkeys(readable)}
    return Grants(real, tuple(listable), tuple(sites))


def _library_folders() -> list[Path]:
    paths = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    return sorted(paths | {Path(sysconfig.__file__).parent})


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
