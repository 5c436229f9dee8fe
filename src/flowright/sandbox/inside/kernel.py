"""The system calls that Python's standard library lacks, through ctypes; errors become OSError.

Part of the isolated side: standard library only, no import of the package.
"""

import contextlib
import ctypes
import os
import platform
from typing import Any

MACHINE = platform.machine()
SUPPORTED = ("x86_64", "aarch64")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.restype = ctypes.c_int
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38

_CAPABILITY_VERSION_3 = 0x20080522
_CAPSET = {"x86_64": 126, "aarch64": 91}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_TIMER_CREATE = {"x86_64": 222, "aarch64": 107}
_TIMER_SETTIME = {"x86_64": 223, "aarch64": 110}
_CLOCK_PROCESS_CPUTIME_ID = 2
_SECUREBITS_NOROOT_LOCKED = 0x2F  # noroot, no_setuid_fixup, keep_caps locked off, ambient off

# What children hand to the kernel, laid out once: making a C type takes longer than the call.
_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
_NO_CAPABILITY = (ctypes.c_uint32 * 6)()
_SIGKILL_EVENT = (ctypes.c_int32 * 16)(0, 0, 9, 0)  # struct sigevent: value, signal, notify by it
_TIMER = ctypes.c_int()
_TIMER_REFERENCE = ctypes.byref(_TIMER)
_TIMER_VALUE = (ctypes.c_int64 * 4)()  # struct itimerspec: interval, value


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, what: str, *arguments: Any) -> int:
    """A raw system call; integers are passed as 64-bit words. ``what`` names it in the error."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), what)


def prctl(option: int, *arguments: int) -> None:
    words = (*arguments, 0, 0, 0, 0)
    _checked(_libc.prctl(option, *words[:4]), f"prctl({option})")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _checked(result, f"mount({target})")


def unmount(target: str) -> None:
    """Detach a mount (MNT_DETACH): at once, whatever still uses it."""
    _checked(_libc.umount2(os.fsencode(target), 2), f"umount({target})")


def pivot_root(new_root: str, put_old: str) -> None:
    new, old = os.fsencode(new_root), os.fsencode(put_old)
    syscall(_PIVOT_ROOT[MACHINE], "pivot_root", ctypes.c_char_p(new), ctypes.c_char_p(old))


def forbid_regaining() -> None:
    """Close, for this process and all that it forks, the way back to capabilities through uid 0.
    What it has now it keeps, a change of its user id included."""
    with contextlib.suppress(PermissionError):  # an ordinary user has no capability to lose
        prctl(PR_SET_SECUREBITS, _SECUREBITS_NOROOT_LOCKED)


def drop_capabilities() -> None:
    """Give up every capability of this process."""
    syscall(_CAPSET[MACHINE], "capset", _CAPABILITY_HEADER, _NO_CAPABILITY)


def kill_after_cpu(seconds: float) -> None:
    """Have the kernel send SIGKILL once this process has used ``seconds`` of CPU time.

    RLIMIT_CPU counts whole seconds only. The timer cannot be undone by the program: the seccomp
    filter knows no timer_* call.
    """
    create, settime = _TIMER_CREATE[MACHINE], _TIMER_SETTIME[MACHINE]
    syscall(create, "timer_create", _CLOCK_PROCESS_CPUTIME_ID, _SIGKILL_EVENT, _TIMER_REFERENCE)
    whole = int(seconds)
    _TIMER_VALUE[2:4] = whole, max(1, int((seconds - whole) * 1e9))
    syscall(settime, "timer_settime", _TIMER.value, 0, _TIMER_VALUE, None)
