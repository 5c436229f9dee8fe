"""Isolation by Landlock, namespaces, resource limits and dropped privileges; and a test of it.

The zygote prepares once (:class:`Prepared`), each forked child enters (:func:`enter`) before it
sees a byte of untrusted code. Part of the isolated side: standard library only, no import of the
package.
"""

import contextlib
import os
import resource
import socket
import stat
import struct
from collections.abc import Callable, Iterable
from typing import Any

import kernel  # type: ignore[import-not-found]
import seccomp  # type: ignore[import-not-found]

Json = dict[str, Any]

# --- Landlock (Documentation/userspace-api/landlock.rst) --------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _WRITE_FILE, _TRUNCATE = 1 << 2, 1 << 3, 1 << 1, 1 << 14
_DEVICES = 1 << 6 | 1 << 11 | 1 << 9 | 1 << 10  # make character, block devices, sockets, fifos


def landlock_version() -> int:
    """The kernel's Landlock version; 0 where it has none or it is switched off."""
    try:
        return kernel.syscall(_CREATE_RULESET, "landlock", None, 0, 1)
    except OSError:
        return 0


def landlock_of(config: Json) -> int:
    """The version to be used: 0 also where it is not wanted."""
    return landlock_version() if "landlock" in config["layers"] else 0


def is_sealed(config: Json, namespaces: bool) -> bool:
    """Return whether only the system call filter guards the disk, and so has to close it."""
    return "sealed" in config["layers"] and not namespaces and not landlock_of(config)


def _ruleset(version: int, readable: list[str], listable: list[str], writable: list[str]) -> int:
    """A Landlock ruleset as a descriptor: everything that it handles and no rule allows is denied.

    ``readable`` are files and trees, ``listable`` folders whose names may be read, ``writable``
    trees for scratch files. TCP, abstract sockets and signals leave with the versions that know
    them (4 and 6); seccomp has refused them already.
    """
    rights = 0x1FFF | (1 << 13 if version >= 2 else 0)
    rights |= (_TRUNCATE if version >= 3 else 0) | (1 << 15 if version >= 5 else 0)
    attributes = struct.pack("QQQ", rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = kernel.syscall(_CREATE_RULESET, "landlock", attributes, len(attributes), 0)
    scratch = rights & ~(1 << 0 | 1 << 15) & ~_DEVICES
    device = rights & (_READ_FILE | _WRITE_FILE)
    for paths, allowed in (
        (readable, _READ_FILE | _READ_DIR),
        (listable, _READ_DIR),
        (writable, scratch),
        (["/dev/null"], device | rights & _TRUNCATE),
    ):
        for path in paths:
            _add_rule(ruleset, path, allowed)
    return ruleset


def _add_rule(ruleset: int, path: str, allowed: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(beneath).st_mode):
            allowed &= _READ_FILE | _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", allowed, beneath)
        kernel.syscall(_ADD_RULE, "landlock", ruleset, 1, rule, 0)
    finally:
        os.close(beneath)


def works(trial: Callable[[], None]) -> bool:
    """Return whether ``trial`` succeeds without OSError, in a process that may be lost."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(OSError):
            trial()
            code = 0
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


# --- namespaces -------------------------------------------------------------------------------

_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_REC, _PRIVATE = 16384, 1 << 18
_KEPT = {1: 1, 2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}  # statvfs flag: mount flag


def enter_namespaces(config: Json) -> None:
    """Leave the machine's namespaces for own ones, with a file system of the granted paths only.

    Afterwards *children* of this process are in the new pid namespace. Raises OSError, possibly
    half-way: try it in a process that may be lost first.
    """
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    user, group = os.geteuid(), os.getegid()
    try:
        if user != 0:
            raise PermissionError
        kernel.unshare(flags)
    except PermissionError:
        kernel.unshare(flags | _NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"65534 {user} 1"),
            ("gid_map", f"65534 {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _enter_file_system(config)
    with contextlib.suppress(OSError):
        socket.sethostname("sandbox")


def _enter_file_system(config: Json) -> None:
    kernel.mount("none", "/", None, _REC | _PRIVATE)
    kernel.mount("tmpfs", "/usr", "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    os.mkdir("/usr/old")
    kernel.pivot_root("/usr", "/usr/old")
    os.chdir("/")
    for path, real in (*config["readable"].items(), ("/dev/null", "/dev/null")):
        _bind("/old" + real, path)
    for path in config["listable"]:
        os.makedirs(path, exist_ok=True)
    os.makedirs(config["tmp"], exist_ok=True)
    for name in ("/lib", "/lib64", "/bin", "/sbin"):  # where /usr is all there is, they point there
        if os.path.islink("/old" + name) and not os.path.lexists(name):
            os.symlink(os.readlink("/old" + name), name)
    kernel.unmount("/old")
    os.rmdir("/old")
    mount_tmp(config)
    kernel.mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def _bind(source: str, path: str) -> None:
    if not os.path.exists(source):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(source, path, None, _BIND | _REC)
    # Flags of a mount that came from a more privileged namespace cannot be cleared.
    had = os.statvfs(path).f_flag
    kept = sum(flag for bit, flag in _KEPT.items() if had & bit)
    nodev = 0 if path.startswith("/dev/") else _NODEV
    kernel.mount(None, path, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | nodev | kept)


def mount_tmp(config: Json) -> None:
    """A fresh, empty folder for temporary files at ``config["tmp"]``, of bounded size."""
    data = f"size={config['tmp_bytes']},nr_inodes=1024,mode=1777"
    kernel.mount("tmpfs", config["tmp"], "tmpfs", _NOSUID | _NODEV | _NOEXEC, data)
    os.chdir(config["tmp"])


# --- one child --------------------------------------------------------------------------------


class Prepared:
    """Preparations of the zygote for its children, and its findings about the kernel."""

    def __init__(self, config: Json, base_bytes: int, namespaces: bool, sealed: bool) -> None:
        self.namespaces = namespaces
        self.landlock = landlock_of(config)
        self.sealed = sealed
        self.filter = seccomp.SyscallFilter(sealed)
        self.seccomp = works(self._filter_alone)
        self.uid: int | None = None
        if os.geteuid() == 0 and works(lambda: _read_as(config["uid"], config["readable"])):
            self.uid = config["uid"]
        kernel.forbid_regaining()
        self.zygote = os.getpid()
        self._base_bytes = base_bytes
        self._config = config
        self._reader = self._scratch = -1
        # RLIMIT_NPROC counts per user: exactly ours where the user id or its namespace is private.
        private = namespaces or self.uid is not None
        self._tasks = None if private else _tasks_of_this_user()
        if self.landlock:
            self._reader = self._ruleset([])
            self._scratch = self._ruleset([config["tmp"]] if namespaces else [])

    def _filter_alone(self) -> None:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        self.filter.load()

    def _ruleset(self, writable: list[str]) -> int:
        readable, listable = list(self._config["readable"]), self._config["listable"]
        return _ruleset(self.landlock, readable, listable, writable)

    def renew_tmp(self) -> None:
        """Delete all that a child left in its folder, however large or deep."""
        kernel.unmount(self._config["tmp"])
        mount_tmp(self._config)
        if self.landlock:  # its rule was for the folder that is gone
            os.close(self._scratch)
            self._scratch = self._ruleset([self._config["tmp"]])

    def restrict_paths(self, scratch: bool) -> None:
        if self.landlock:
            ruleset = self._scratch if scratch else self._reader
            kernel.syscall(_RESTRICT_SELF, "landlock", ruleset, 0)

    def limit(self, limits: Json) -> None:
        threads = limits["processes"] + 8 if self._tasks is None else self._tasks + 1024
        for kind, wanted in (
            (resource.RLIMIT_AS, self._base_bytes + limits["memory_bytes"]),
            (resource.RLIMIT_CPU, int(limits["cpu_seconds"]) + 2),
            (resource.RLIMIT_FSIZE, max(limits["file_bytes"], limits["output_bytes"])),
            (resource.RLIMIT_NPROC, threads),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
        ):
            hard = resource.getrlimit(kind)[1]
            value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (value, value))


def go_first() -> None:
    """Make the kernel kill these processes first when memory runs out, the largest first, and spare
    the trainer."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def address_space() -> int:
    """Bytes of address space that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _tasks_of_this_user() -> int:
    """Threads that run under this user now: RLIMIT_NPROC counts them all."""
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _read_as(uid: int, paths: Iterable[str]) -> None:
    """Become user ``uid`` and open everything that is granted."""
    _become(uid)
    for path in (os.__file__, *filter(os.path.exists, paths)):
        os.close(os.open(path, os.O_RDONLY))


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def enter(prepared: Prepared, limits: Json, scratch: bool) -> None:
    """Put this process, for good, under everything that the zygote prepared.

    ``scratch`` lets it write temporary files, where it can have a folder of its own. Descriptors
    from 5 on are closed. Afterwards no right comes back: exec, new processes, sockets and signals
    to others are refused.
    """
    if prepared.uid is not None:
        _become(prepared.uid)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    if os.getppid() != prepared.zygote:  # it died before it could take this child along
        os._exit(1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    prepared.restrict_paths(scratch)
    os.closerange(5, 4096)
    prepared.limit(limits)
    kernel.kill_after_cpu(limits["cpu_seconds"])
    if prepared.seccomp:
        prepared.filter.load()
