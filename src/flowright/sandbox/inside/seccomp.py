"""The seccomp allow-list: which system calls a candidate may make, as a BPF program.

Everything that is not named here fails with EPERM (newer calls with ENOSYS, so that the C library
falls back). Numbers are those of x86_64 and of aarch64; any other machine is refused. A sealed
filter allows no call that takes a path but for asking the state of a descriptor: for kernels on
which nothing else guards the disk.

Part of the isolated side: standard library only, no import of the package.
"""

import ctypes
import errno
import os
import struct

import kernel  # type: ignore[import-not-found]  # a sibling: this folder is run by itself

# name: (x86_64, aarch64); None where the machine has no such call.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # memory
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226),
    "mremap": (25, 216), "madvise": (28, 233), "msync": (26, 227), "mincore": (27, 232),
    "membarrier": (324, 283),
    # descriptors that are already open
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "lseek": (8, 62),
    "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "fstat": (5, 80), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "fallocate": (285, 47), "fadvise64": (221, 223), "flock": (73, 32),
    "sendfile": (40, 71), "copy_file_range": (326, 285), "getdents": (78, None),
    "getdents64": (217, 61), "fstatfs": (138, 44), "fchdir": (81, 50), "getcwd": (79, 17),
    "umask": (95, 166),
    # waiting
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "eventfd": (284, None), "eventfd2": (290, 19), "pipe": (22, None), "pipe2": (293, 59),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "pause": (34, None),
    # sockets: only a pair of connected ends (see _GUARDED), so nothing outside can be addressed
    "sendto": (44, 206), "recvfrom": (45, 207), "shutdown": (48, 210),
    "getsockname": (51, 204), "getpeername": (52, 205), "getsockopt": (55, 209),
    # time, self, threads
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169),
    "time": (201, None), "times": (100, 153), "getrusage": (98, 165), "sysinfo": (99, 179),
    "uname": (63, 160), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getpgrp": (111, None), "getpgid": (121, 155), "getrlimit": (97, 163), "getcpu": (309, 168),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getrandom": (318, 278),
    "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "set_tid_address": (218, 96), "rseq": (334, 293), "restart_syscall": (219, 128),
    "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260),
    # signals to oneself
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "alarm": (37, None), "setitimer": (38, 103),
    "getitimer": (36, 102),
}  # fmt: skip

# Landlock and the mount namespace decide which paths; a sealed filter refuses them (see _guards).
_PATHS: dict[str, tuple[int | None, int | None]] = {
    "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "statfs": (137, 43), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "chdir": (80, 49),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
}  # fmt: skip

# Allowed for some arguments only: see _guards.
_GUARDED: dict[str, tuple[int | None, int | None]] = {
    "open": (2, None), "openat": (257, 56), "ioctl": (16, 29), "fcntl": (72, 25),
    "clone": (56, 220), "socketpair": (53, 199), "kill": (62, 129), "tgkill": (234, 131),
    "prlimit64": (302, 261),
}  # fmt: skip

_CLONE3 = 435  # its flags lie in memory, out of a filter's sight; without it glibc uses clone
_FIRST_NEW = 424  # from here on a call may be unknown to an older kernel: ENOSYS is expected

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_DENY = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand

# What glibc and musl start a thread with: memory, file system, descriptors, signal handlers,
# thread, semaphores, where its id and local storage are; musl adds a flag that means nothing. No
# other use of clone is a program's: without CLONE_THREAD there is a process more, and with
# CLONE_VFORK the caller sleeps uninterruptibly, like one that waits for the machine.
_THREAD_FLAGS = (0x003D0F00, 0x007D0F00)
_IOCTLS = (0x5401, 0x5421, 0x5450, 0x5451, 0x541B)  # TCGETS FIONBIO FIONCLEX FIOCLEX FIONREAD
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)  # dup, flags, locks; no owner, no signal
_O_TRUNC = 0o1000
_AT_EMPTY_PATH = 0x1000
_AF_UNIX, _SOCK_STREAM = 1, 1
_OWN_PID = 0xFFFFFFFE  # stands for the process's own id until it is known


def _argument(index: int, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def _one_of(values: tuple[int, ...]) -> list[Instruction]:
    """Allow when the loaded word is one of ``values``."""
    checks = [(_JUMP_EQ, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*checks, (_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]


def _open_guard(flags: int) -> list[Instruction]:
    """No O_TRUNC on a file opened for reading: the first two Landlock versions let it through."""
    return [
        _argument(flags),
        (_JUMP_SET, 1, 0, _O_TRUNC),
        (_RETURN, 0, 0, _ALLOW),
        (_AND, 0, 0, os.O_ACCMODE),
        (_JUMP_EQ, 0, 1, os.O_RDONLY),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _signal_guard(signal_index: int) -> list[Instruction]:
    """A signal to oneself, other than SIGKILL: a death by SIGKILL is never the program's doing."""
    return [
        _argument(0),
        (_JUMP_EQ, 1, 0, _OWN_PID),
        (_RETURN, 0, 0, _DENY),
        _argument(signal_index),
        (_JUMP_EQ, 0, 1, 9),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _empty_path_guard(flags: int) -> list[Instruction]:
    """Guard the form in which newer C libraries ask for the state of an open descriptor. A filter
    cannot see the path, so the existence of files can be learnt, their content cannot."""
    return [
        _argument(flags),
        (_JUMP_SET, 1, 0, _AT_EMPTY_PATH),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _guards(sealed: bool) -> dict[str, list[Instruction]]:
    """The conditions of :data:`_GUARDED` calls and, where sealed, of two of the :data:`_PATHS`."""
    paths = {"open": _open_guard(1), "openat": _open_guard(2)}
    if sealed:
        paths = {"newfstatat": _empty_path_guard(3), "statx": _empty_path_guard(2)}
    return {
        **paths,
        "ioctl": [_argument(1), *_one_of(_IOCTLS)],
        "fcntl": [_argument(1), *_one_of(_FCNTLS)],
        "clone": [_argument(0), *_one_of(_THREAD_FLAGS)],
        # A datagram socket could still address others; a connected stream cannot.
        "socketpair": [
            _argument(0),
            (_JUMP_EQ, 1, 0, _AF_UNIX),
            (_RETURN, 0, 0, _DENY),
            _argument(1),
            (_AND, 0, 0, 0xF),
            *_one_of((_SOCK_STREAM,)),
        ],
        "kill": _signal_guard(1),
        "tgkill": _signal_guard(2),
        # Reading one's own limits; setting one lower could fake a death by the machine's doing.
        "prlimit64": [
            _argument(0),
            (_JUMP_EQ, 2, 0, 0),
            (_JUMP_EQ, 1, 0, _OWN_PID),
            (_RETURN, 0, 0, _DENY),
            _argument(2),
            (_JUMP_EQ, 0, 3, 0),
            _argument(2, high=True),
            (_JUMP_EQ, 0, 1, 0),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _DENY),
        ],
    }


def _tree(steps: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """A balanced search for the last step whose number is at most the loaded one.

    The kernel runs a new filter over every call number to cache the constant answers; a tree
    rather than a list keeps that, and so the loading of the filter, short.
    """
    if len(steps) == 1:
        return steps[0][1]
    middle = len(steps) // 2
    below, above = _tree(steps[:middle]), _tree(steps[middle:])
    if len(below) > 255:  # a conditional jump reaches 255 instructions
        raise ValueError("the seccomp filter has grown too large")
    return [(_JUMP_GE, len(below), 0, steps[middle][0]), *below, *above]


def program(machine: str, sealed: bool = False) -> list[Instruction]:
    """The filter for ``machine``, the process's own id left open (see :class:`SyscallFilter`)."""
    column = kernel.SUPPORTED.index(machine)
    actions: dict[int, list[Instruction]] = {}
    for numbers in (_ALLOWED if sealed else _ALLOWED | _PATHS).values():
        number = numbers[column]
        if number is not None:
            actions[number] = [(_RETURN, 0, 0, _ALLOW)]
    for name, guard in _guards(sealed).items():
        number = (_GUARDED | _PATHS)[name][column]
        if number is not None:
            actions[number] = guard
    actions[_CLONE3] = [(_RETURN, 0, 0, _UNKNOWN)]

    steps: list[tuple[int, list[Instruction]]] = []
    for number in sorted({0, _FIRST_NEW, *actions, *(n + 1 for n in actions)}):
        default = _UNKNOWN if number >= _FIRST_NEW else _DENY
        action = actions.get(number, [(_RETURN, 0, 0, default)])
        if not steps or steps[-1][1] != action:
            steps.append((number, action))
    head: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQ, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        head += [(_JUMP_GE, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    return head + _tree(steps)


class SyscallFilter:
    """The assembled filter: made once, then completed with a process's own id and loaded."""

    def __init__(self, sealed: bool) -> None:
        instructions = program(kernel.MACHINE, sealed)
        code = b"".join(struct.pack("HBBI", *line) for line in instructions)
        self._code = ctypes.create_string_buffer(code, len(code))
        self._own = [8 * i + 4 for i, line in enumerate(instructions) if line[3] == _OWN_PID]
        header = struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header, len(header))
        self._address = ctypes.addressof(self._header)

    def load(self) -> None:
        """Put this process, for good, under the filter. Needs no_new_privs."""
        for offset in self._own:
            struct.pack_into("I", self._code, offset, os.getpid())
        kernel.prctl(kernel.PR_SET_SECCOMP, 2, self._address)
