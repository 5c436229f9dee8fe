"""The zygote: a warm, clean interpreter that forks one isolated child per execution.

It never sees untrusted code: a child reads its job from a descriptor of its own. What the zygote
knows, every child could read, so it knows nothing but its configuration. Run as
``python -P -s -S -B <this folder> <control descriptor>``, which begins in __main__.py, with an
environment of its parent's making: ``-I`` would add nothing to that but ignore PYTHONHASHSEED,
without which two runs of one program differ.

Standard library only, no import of the package.
"""

import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import posix
import random
import select
import signal
import socket
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import isolation  # type: ignore[import-not-found]
import kernel  # type: ignore[import-not-found]
import probe  # type: ignore[import-not-found]
import solution  # type: ignore[import-not-found]
import suite  # type: ignore[import-not-found]

# What candidates most often import, so that they need not wait for it. No more than that: each
# megabyte costs every child time, when it is forked and when it ends.
_WARM = (
    "abc", "bisect", "cmath", "collections", "copy", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "reprlib",
    "string", "struct", "time", "traceback", "typing",
)  # fmt: skip

# Where the disk is sealed nothing can be imported later: what else honest programs may ask for.
_SEALED = (
    "array", "ast", "asyncio", "base64", "binascii", "cProfile", "calendar", "cmd", "codecs",
    "collections.abc", "colorsys", "concurrent.futures", "configparser", "contextlib",
    "contextvars", "copyreg", "csv", "ctypes", "curses.ascii", "dataclasses", "difflib", "dis",
    "doctest", "email.message", "email.utils", "encodings.ascii", "encodings.cp1252",
    "encodings.hex_codec", "encodings.idna", "encodings.latin_1", "encodings.punycode",
    "encodings.raw_unicode_escape", "encodings.unicode_escape", "encodings.utf_16",
    "encodings.utf_32", "encodings.utf_8_sig", "errno", "filecmp", "fnmatch", "getopt", "gettext",
    "glob", "graphlib", "gzip", "hashlib", "hmac", "html", "html.entities", "html.parser", "http",
    "imaplib", "importlib", "inspect", "ipaddress", "keyword", "linecache", "locale", "logging",
    "marshal", "multiprocessing", "netrc", "ntpath", "numbers", "optparse", "os.path", "pathlib",
    "pickle", "pkgutil", "platform", "plistlib", "posixpath", "pprint", "profile", "pstats",
    "pyclbr", "queue", "quopri", "sched", "secrets", "select", "selectors", "shelve", "shlex",
    "shutil", "signal", "socket", "sqlite3", "stat", "statistics", "stringprep", "subprocess",
    "symtable", "sysconfig", "tempfile", "textwrap", "threading", "timeit", "token", "tokenize",
    "tracemalloc", "types", "unicodedata", "unittest", "unittest.mock", "urllib.parse",
    "urllib.request", "uuid", "warnings", "wave", "weakref", "xml.dom.minidom",
    "xml.etree.ElementTree", "zipfile", "zlib", "zoneinfo",
)  # fmt: skip

_LEFT_OUT = frozenset({
    "__main__", "tests", "testing", "benchmarks", "conftest", "f2py", "distutils",
    "plotting", "interactive", "physics", "autolev", "latex", "codegen", "sandbox", "_pyinstaller",
})  # fmt: skip

_OWN_MODULES = ("zygote", "isolation", "kernel", "probe", "seccomp", "codec", "solution", "suite")


def main() -> NoReturn:
    if kernel.MACHINE not in kernel.SUPPORTED:
        sys.exit(f"untrusted code can be isolated on {' and '.join(kernel.SUPPORTED)} only")
    os.close(os.pidfd_open(os.getpid()))  # without it (before Linux 5.3) nothing here works
    isolation.go_first()
    control = _sole_descriptor(int(sys.argv[1]))
    config = json.loads(control.recv(1 << 20))
    sys.path[:] = [*sys.path[1:], *config["path"]]  # without this folder, with the site folders
    _warm_up(config["warm_up"])
    base_bytes = isolation.address_space()
    wanted = "namespaces" in config["layers"]
    namespaces = wanted and isolation.works(lambda: _try_namespaces(config))
    unmounted = False
    if namespaces:
        isolation.enter_namespaces(config)
        _become_first_process()
    elif wanted:  # by the kernel, or only with the granted paths?
        bare = {**config, "readable": {}, "listable": []}
        unmounted = isolation.works(lambda: _try_namespaces(bare))
    sealed = isolation.is_sealed(config, namespaces)
    if sealed:
        _import_what_exists(_SEALED)
        for package in config["packages"]:
            _import_what_exists(_parts(package))
        base_bytes = isolation.address_space()
    prepared = isolation.Prepared(config, base_bytes, namespaces, sealed)
    found = _self_test(prepared, config)
    if unmounted:
        found["hindrances"].append("enter the namespaces that the kernel offers")
    report = {
        "seccomp": prepared.seccomp,
        "landlock": prepared.landlock,
        "namespaces": namespaces,
        "sealed": prepared.sealed,
        "private_uid": prepared.uid is not None,
        **found,
    }
    _seed()
    gc.freeze()
    control.send(json.dumps(report).encode())
    _Zygote(control, prepared, config["tmp"]).serve()


def _sole_descriptor(number: int) -> socket.socket:
    """The control socket out of the way of the numbers that children use, which stay taken."""
    control = socket.socket(fileno=fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 20))
    os.close(number)
    while os.open(os.devnull, os.O_RDONLY) < 9:
        pass
    return control


def _warm_up(source: str) -> None:
    for name in _WARM:
        __import__(name)
    exec(source, {})
    for name in _OWN_MODULES:
        sys.modules.pop(name, None)
    os.register_at_fork = posix.register_at_fork  # __main__.py removed it
    os.environ.clear()
    gc.collect()
    gc.freeze()  # whatever is forked from now on shares this memory


def _seed() -> None:
    """Every child finds the generators of random numbers as they are here."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def _import_what_exists(names: Iterable[str]) -> None:
    """Some of the standard library is missing from some builds and versions of Python, and some
    parts of a package want others that are not installed. What they print would be in every
    child's output."""
    for name in names:
        with (
            contextlib.suppress(Exception),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            __import__(name)


def _parts(package: str) -> Iterator[str]:
    """The modules of a package that it may import late (sympy does so all the time)."""
    import pkgutil  # it brings a megabyte along, for which each child would pay

    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}.", onerror=lambda name: None):
        if not _LEFT_OUT.intersection(module.name.split(".")):
            yield module.name


def _try_namespaces(config: dict[str, Any]) -> None:
    isolation.enter_namespaces(config)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _become_first_process() -> None:
    """Go on as process 1 of the new pid namespace: when it ends, the kernel ends all the rest."""
    child = os.fork()
    if child == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(3, 4096)
    os.waitpid(child, 0)
    os._exit(0)


def _self_test(prepared: isolation.Prepared, config: dict[str, Any]) -> dict[str, Any]:
    """Return the forbidden things that an isolated child can do, and the needed ones that it
    cannot."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 3)
        try:
            isolation.enter(prepared, config["probe_limits"], scratch=True)
            found = {
                "escapes": probe.escapes(config["outside"]),
                "hindrances": probe.hindrances(
                    config["tmp"] if prepared.namespaces else None, prepared.sealed
                ),
            }
        except OSError as error:
            found = {"escapes": [], "hindrances": [str(error)]}
        os.write(3, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text or b'{"escapes": [], "hindrances": ["live through the self-test"]}')


class _Zygote:
    """Forks on request, reaps, reports. Requests and reports are JSON datagrams:

    ``["fork", id]`` with the child's descriptors; ``["kill", id]``; ``["watch", id]``, answered by
    ``{"id", "watch": true}`` with the child's pidfd. A child's end: ``{"id", "code", "cpu",
    "memory"}``, in seconds and bytes.
    """

    def __init__(self, control: socket.socket, prepared: isolation.Prepared, tmp: str) -> None:
        self._control = control
        self._tmp = tmp
        self._prepared = prepared
        self._children: dict[int, tuple[int, int]] = {}  # pidfd: (job id, pid)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._tmp_state = self._look_at_tmp()

    def serve(self) -> NoReturn:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    self._obey()
                else:
                    self._reap(descriptor)

    def _obey(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._control, 4096, 8)
        if not message:  # the parent is gone
            os._exit(0)
        order, number = json.loads(message)
        if order == "fork":
            self._fork(number, descriptors)
            return
        for pidfd, (job, _) in self._children.items():
            if job != number:
                continue
            if order == "kill":
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            else:
                answer = json.dumps({"id": number, "watch": True}).encode()
                socket.send_fds(self._control, [answer], [pidfd])

    def _fork(self, number: int, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._report({"id": number, "lost": f"fork: {error.strerror}"})
            pid = -1
        if pid == 0:
            _child(self._prepared, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = (number, pid)
            self._poll.register(pidfd, select.POLLIN)

    def _reap(self, pidfd: int) -> None:
        number, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        if not self._children and self._look_at_tmp() != self._tmp_state:
            self._prepared.renew_tmp()
            self._tmp_state = self._look_at_tmp()
        code = os.waitstatus_to_exitcode(status)
        cpu, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
        self._report({"id": number, "code": code, "cpu": cpu, "memory": memory})

    def _look_at_tmp(self) -> object:
        if not self._prepared.namespaces:
            return None
        seen = os.lstat(self._tmp)
        return (seen.st_mode, seen.st_ctime_ns, seen.st_mtime_ns)

    def _report(self, report: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(report).encode())
        except OSError:  # the parent is gone
            os._exit(0)


def _child(prepared: isolation.Prepared, descriptors: list[int]) -> None:
    """Become one execution and end with it; does not return. Descriptors: the job, then what will
    be 0, 1, 2 and so on."""
    status = 1
    try:
        status = _perform(_settle(prepared, descriptors))
    except BaseException:  # noqa: BLE001  whatever happened, the child ends here
        status = 1
    solution.leave(status)


def _perform(job: dict[str, Any]) -> int:
    if job["role"] == "run":
        return solution.run_program(job["source"])
    if job["role"] == "solution":
        return solution.serve_solution(job, 3)
    return suite.run_suite(job, 3, 4)


def _settle(prepared: isolation.Prepared, descriptors: list[int]) -> dict[str, Any]:
    """Read the job, put the descriptors in place, give up every right; the job."""
    try:
        job_file, *kept = descriptors
        job = json.loads(os.pread(job_file, os.fstat(job_file).st_size, 0))
        os.close(job_file)
        for wanted, given in enumerate(kept):
            os.dup2(given, wanted)
        os.closerange(len(kept), 5)
        sys.modules["__main__"] = types.ModuleType("__main__")
        isolation.enter(prepared, job["limits"], scratch=job["role"] != "suite")
    except BaseException:
        # A death by SIGKILL without an order means: not the program's doing.
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    return job
