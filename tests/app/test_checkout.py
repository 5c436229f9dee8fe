"""A checkout whose requirements are installed and which is not: every entry point works, from any
folder, and so does what it starts. What it prints as a command is one."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from flowright.app.ray_cluster import _where
from flowright.core.checkout import SOURCE, here

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    "train.py",
    "monitor_training_live.py",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "scripts").glob("*.py")),
]
ENTRIES = ("train.py", "scripts/evaluate.py")
"""Those that are tried by default; all are alike."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with every installed package but this one, which a .pth file of theirs would add."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/python"


def call(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_is_not_installed_there(bare: Path, tmp_path: Path) -> None:
    done = call(bare, "-c", "import pydantic, flowright", cwd=tmp_path)
    assert "No module named 'flowright'" in done.stderr


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=() if program in ENTRIES else pytest.mark.slow)
        for program in PROGRAMS
    ],
)
def test_an_entry_point_finds_the_package(bare: Path, tmp_path: Path, program: str) -> None:
    done = call(bare, "-P", ROOT / program, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if program not in ENTRIES:
        return
    done = call(bare, "-P", ROOT / program, "--config", "none.yaml", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr == "none.yaml: No such file or directory\n"


def test_an_entry_point_works_as_a_module_and_by_a_link(bare: Path, tmp_path: Path) -> None:
    missing = ("--config", "none.yaml")
    done = call(bare, "-m", "train", *missing, cwd=ROOT)
    assert done.stderr == "none.yaml: No such file or directory\n"
    done = call(bare, "-m", "scripts.serve_judge", *missing, cwd=ROOT)
    assert done.stderr == "none.yaml: No such file or directory\n"
    link = tmp_path / "train"
    link.symlink_to(ROOT / "train.py")
    done = call(bare, link, *missing, cwd=tmp_path)
    assert done.stderr == "none.yaml: No such file or directory\n"


def test_the_checkout_that_is_called_comes_before_an_installed_one(tmp_path: Path) -> None:
    """Another checkout, with this one's installed."""
    (tmp_path / "scripts").mkdir()
    other = shutil.copy(ROOT / "scripts/serve_judge.py", tmp_path / "scripts")
    package = tmp_path / "src/flowright"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the other')")
    done = call(sys.executable, other, "--config", "none.yaml", cwd=tmp_path)
    assert done.stderr == "the other\n"


def test_the_embedded_server_starts(bare: Path, tmp_path: Path) -> None:
    """A child process, as training and the judge service start it."""
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n"
        "from flowright.simulation.process import SimulatedServer\n"
        "with SimulatedServer([]) as server: print(server.base_url)"
    )
    done = call(bare, "-c", program, cwd=tmp_path)
    assert done.stdout.startswith("http://127.0.0.1:"), done.stderr


def test_a_clusters_workers_are_told_where_it_is() -> None:
    for address in (None, "auto"):
        told = _where(address)["runtime_env"]["env_vars"]["PYTHONPATH"]
        assert told.split(os.pathsep)[0] == str(ROOT / "src")


def test_the_monitor_takes_a_python_that_has_what_it_needs(bare: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    venv.create(empty)  # a Python without anything comes first on the path
    (empty / "bin/python").unlink()  # but as python3 only
    path = f"{empty / 'bin'}:{bare.parent}:/usr/bin:/bin"
    monitor = tmp_path / "checkout/monitor.sh"
    monitor.parent.mkdir()
    for name in ("monitor.sh", "monitor_training_live.py", "src"):
        (monitor.parent / name).symlink_to(ROOT / name)
    done = call("bash", monitor, "--once", cwd=tmp_path, PATH=path)
    assert done.returncode == 2 and "no run here yet; start one with" in done.stderr
    command = done.stderr.partition("start one with ")[2].partition(",")[0]
    assert call("bash", "-c", f"{command} --help", cwd=tmp_path, PATH=path).returncode == 0


def test_a_python_without_the_requirements_or_too_old_says_so(tmp_path: Path) -> None:
    venv.create(tmp_path / "empty")
    python = tmp_path / "empty/bin/python"
    install = f"install the requirements: {python} -m pip install -e {ROOT}\n"
    for program in ("monitor_training_live.py", "scripts/view.py", "train.py"):
        more = ("--config", "quickstart") if program == "train.py" else ()
        done = call(python, ROOT / program, *more, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.endswith(install), done.stderr
        assert done.stderr.startswith("No module named ") and done.stderr.count("\n") == 1
    old = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); sys.version_info = (3, 8, 18)\n"
    done = call(python, "-c", old + "from flowright.cli.commands import run", cwd=tmp_path)
    told = f"Flowright needs Python 3.11 or newer; this is Python 3.8.18 ({python})\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_a_command_is_told_as_it_works_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "python train.py --config config/quickstart.yaml --resume"
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert here(told).endswith(" train.py --config config/quickstart.yaml --resume")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin")
    assert here(told) == told
    monkeypatch.chdir(tmp_path)
    assert here(told) == f"python {ROOT}/train.py --config {ROOT}/config/quickstart.yaml --resume"
    (tmp_path / "config").mkdir()
    (tmp_path / "config/quickstart.yaml").touch()  # the reader's own
    assert here(told) == f"python {ROOT}/train.py --config config/quickstart.yaml --resume"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert here("python train.py") == f"{sys.executable} {ROOT}/train.py"
    assert here("bash monitor.sh 'my runs/a b'").endswith("/monitor.sh 'my runs/a b'")
