# SPDX-License-Identifier: Apache-2.0
# /// script
# dependencies = ["nox>=2025.2"]
# ///
"""Everything that is run on this repository. ``nox -l`` lists it, ``nox`` runs the tests."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zlib
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
# pip rather than uv: uv resolves torch to a build that brings gigabytes of CUDA packages.
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["tests"]
# Tests start many processes, each of which would compile torch's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
# Compiling torch to bytecode takes as long as the rest of its installation, and most is never run.
PIP = ("--no-compile", "-c", str(ROOT / ".ci" / "constraints.txt"))
PARTS = ("gs-cull", "gs-order", "gs-pinned", "gs-adam", "gs-raster")
PACKAGES = (*PARTS, "gs-train")
NATIVE = ("gs-cull", "gs-pinned", "gs-adam", "gs-raster")
NEEDS = dict.fromkeys(PARTS, ()) | {"gs-train": PARTS}
# Groups of tests, each run by one pytest: folders, and its number of processes. The tests of all
# packages together come first: they compile most of numba's functions for the workers that follow,
# whose folders begin with these (packages/conftest.py).
# The tests of gs-pinned and gs-cull are of threads themselves.
TEST_GROUPS = (
    (("tests",), 1),
    (("packages/gs-pinned/tests",), 1),
    (("packages/gs-cull/tests",), 1),
    (tuple(f"packages/gs-{name}/tests" for name in ("order", "adam", "raster", "train")), 2),
)
CPP_FILES = ("*.hpp", "*.cpp", "*.cu", "*.cuh")
# What CI itself runs, by the file in .ci/locks that holds exact versions and hashes of it.
TOOLS = {
    "nox": ("nox>=2025.2",),
    "lint": ("ruff==0.17.5", "mypy==2.4.1", "clang-format==23.1.5", "types-PyYAML", "nox"),
    "docs": ("sphinx>=8", "myst-parser>=4", "furo"),
    "build": ("build", "cmake>=3.24", "ninja"),
}
# Sizes that fit a GPU of 8 GB and a few minutes; the documented figures come from the defaults.
GPU_BENCHMARKS = (
    ("adam/bench_device.py", "--rows", "2000000"),
    ("cull/bench_cull.py", "--n", "5000000"),
    ("order/bench_plan.py", "--rows", "1000000"),
    ("pinned/bench_transfer.py", "--rows", "4000000"),
    ("raster/bench_view.py", "--scenes", "5M", "--samples", "3"),
)


@nox.session
def lint(session: nox.Session) -> None:
    """Style of Python and C++, and types."""
    _install_tools(session, "lint")
    session.install(*PIP, "torch", "numpy", "pytest", "tyro")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    files = [str(f) for kind in CPP_FILES for f in _tracked(session, kind)]
    session.run("clang-format", "--dry-run", "-Werror", *files, silent=True)
    for package in PACKAGES:
        session.run("mypy", str(ROOT / "packages" / package / "src"))


@nox.session(reuse_venv=True)
def tests(session: nox.Session) -> None:
    """Tests of every package and of all together: ``-- packages/gs-adam/tests -k name`` for some.

    One environment, kept from run to run, and packages built without CUDA. That each package
    installs alone is for ``sdist`` to show. Options without a path go to every group of tests.
    """
    wheels = _install(session, *PACKAGES, extra="test", GS_CUDA="OFF")
    # An environment that is kept has packages of other sources and of the same version.
    session.install("--no-compile", "--no-deps", "--force-reinstall", *wheels)
    session.install(*PIP, "setuptools")
    cache = _numba_cache(session)
    paths = [a for a in session.posargs if (ROOT / a.split("::")[0]).exists()]
    may_find_none = bool(session.posargs and not paths)
    for folders, workers in [((), 1)] if paths else TEST_GROUPS:
        parallel, environment = [], {"NUMBA_CACHE_DIR": str(cache / "main")}
        if workers > 1:
            parallel, environment["OMP_NUM_THREADS"] = [f"-n{workers}", "--dist=worksteal"], "1"
        command = ("pytest", *folders, *parallel, *session.posargs)
        session.run(*command, env=environment, success_codes=[0, 5] if may_find_none else [0])


@nox.session
def campaign(session: nox.Session) -> None:
    """Attempts to break everything: ``nox -s campaign -- corrupt --count 1000 --seed 0``."""
    _install(session, *PACKAGES, extra="test")
    session.run("python", "-m", "campaigns", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def sdist(session: nox.Session, package: str) -> None:
    """Build the sdist, install it away from the repository, and run its tests there."""
    _install_tools(session, "build")
    away = Path(session.create_tmp()) / package
    shutil.rmtree(away, ignore_errors=True)
    session.run("python", "-m", "build", "--sdist", "--outdir", str(away), f"packages/{package}")
    (archive,) = away.glob("*.tar.gz")
    session.run("python", "-m", "tarfile", "-e", str(archive), str(away), silent=True)
    (unpacked,) = (path for path in away.iterdir() if path.is_dir())
    siblings = [str(_wheel(session, name)) for name in NEEDS[package]]
    session.install(*PIP, f"{archive}[test]", *siblings)
    shutil.copy(ROOT / ".pytest.toml", unpacked)
    session.chdir(unpacked)
    session.run("pytest", "tests", *session.posargs)


@nox.session
def cpp(session: nox.Session) -> None:
    """The tests of the shared C++ headers; ``-- address`` or ``-- thread`` adds a sanitizer."""
    _install_tools(session, "build")
    sanitizer = session.posargs[0] if session.posargs else ""
    build = str(Path(session.create_tmp()) / f"build{sanitizer}")
    options = ["-DGS_WERROR=ON", f"-DGS_SANITIZE={sanitizer}", "-GNinja"]
    session.run("cmake", "-S", "cpp/tests", "-B", build, *options)
    session.run("cmake", "--build", build)
    session.run("ctest", "--test-dir", build, "--output-on-failure")


@nox.session
def sanitize_cpu(session: nox.Session) -> None:
    """CPU tests of native packages below gcc's address, undefined (or ``-- thread``) sanitizers."""
    kind, *chosen = session.posargs or ["address,undefined"]
    wheels = [_wheel(session, package, GS_CUDA="OFF", GS_SANITIZE=kind) for package in NATIVE]
    session.install(*PIP, *(f"{wheel}[test]" for wheel in wheels))
    # A sanitizer must be loaded first, and finds how C++ throws only where that library is there.
    runtime = "libtsan.so" if kind == "thread" else "libasan.so"
    libraries = [
        str(session.run("gcc", f"-print-file-name={name}", external=True, silent=True)).strip()
        for name in (runtime, "libstdc++.so.6")
    ]
    environment = {
        "LD_PRELOAD": " ".join(libraries),
        # The interpreter keeps memory to its end; tests ask for more than there is, and fork.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "allocator_may_return_null=1:die_after_fork=0:halt_on_error=1:"
        f"suppressions={ROOT / 'cmake' / 'tsan.supp'}",
        "OMP_NUM_THREADS": "1",  # torch's own threads are not watched
    }
    # What a sanitizer says as it ends the process would be lost in what pytest captures.
    marked = ["--capture=sys", "-m", "not gpu and not unsanitized and not long"]
    for tests_of in chosen or [f"packages/{package}/tests" for package in NATIVE]:
        session.run("pytest", *marked, tests_of, env=environment)


@nox.session
def cuda_compile(session: nox.Session) -> None:
    """Build every native package with CUDA, warnings as errors; needs nvcc, no GPU."""
    # The wheels of ``demo`` and ``bench``: AUTO builds CUDA where nvcc works, what follows insists.
    wheels = [_wheel(session, package) for package in NATIVE]
    session.install("numpy", *map(str, wheels))
    for package in NATIVE:
        module = package.replace("-", "_")
        session.run(
            "python",
            "-c",
            f"import {module}, sys; info = {module}.build_info(); print(info); "
            "assert info['cuda_toolkit'], 'built without CUDA'; assert 'torch' not in sys.modules",
        )


@nox.session
def gpu(session: nox.Session) -> None:
    """All tests, with a GPU required, and short benchmarks with JSON below build/bench."""
    _install(session, *PACKAGES, extra="test")
    session.install(*PIP, "gsplat>=1.5.3,<1.6", "ninja")
    environment = {"GS_REQUIRE_GPU": "1"}
    for folder in (*(f"packages/{package}/tests" for package in PACKAGES), "tests"):
        # Where there is a GPU, all that is for it.
        marked = ["-m", "gpu or not long"]
        session.run("pytest", folder, *marked, *session.posargs, env=environment)
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    for script, *options in GPU_BENCHMARKS:
        result = out / f"{Path(script).parent}-{Path(script).stem}.json"
        _benchmark(session, f"benchmarks/{script}", *options, "--json", str(result))


@nox.session
def gpu2(session: nox.Session) -> None:
    """Tests of several GPUs, with two required."""
    _install(session, *PACKAGES, extra="test")
    environment = {"GS_REQUIRE_GPU": "1", "GS_REQUIRE_GPU2": "1"}
    marked = ["-m", "gpu2", "packages/gs-train/tests", *session.posargs]
    session.run("pytest", *marked, env=environment)


@nox.session
def sanitize(session: nox.Session) -> None:
    """compute-sanitizer over the tests of every kernel; needs a GPU and the CUDA toolkit."""
    _install(session, *PACKAGES, extra="test")
    folders = [f"packages/{package}/tests" for package in NATIVE]
    # Kernels of the loss, of records between ranks, and Triton's of boxes and of placements.
    of_training = [
        f"packages/gs-train/tests/test_{name}.py"
        for name in ("loss", "box_fits", "gpu_records", "engine_places", "row_copies", "activation")
    ]
    for tool in ("memcheck", "racecheck"):
        checker = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
        for tests_of in (*folders, *of_training):
            marked = ["-m", "gpu and not asynchrony", tests_of, *session.posargs]
            command = [*checker, "python", "-m", "pytest", *marked]
            session.run(*command, env={"GS_REQUIRE_GPU": "1"}, external=True)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job on a made-up capture: ``nox -s demo -- --steps 100``."""
    _install(session, *PACKAGES)
    out = Path(session.create_tmp()) / "demo"
    session.run("gs-train", "demo", "--out", str(out), "--overwrite", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """One benchmark: ``nox -s bench -- benchmarks/adam/bench_host.py --json out.json``."""
    _install(session, *PACKAGES, extra="test")
    session.install(*PIP, "fast-tsp", "matplotlib")
    _benchmark(session, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings as errors."""
    _install_tools(session, "docs")
    out = Path(session.create_tmp()) / "html"
    session.run("sphinx-build", "-W", "--keep-going", "-n", "docs", str(out))


@nox.session
def lock(session: nox.Session) -> None:
    """Write the files in .ci/locks anew, with the versions of today."""
    session.install("uv")
    for name, tools in TOOLS.items():
        wanted = Path(session.create_tmp()) / f"{name}.in"
        wanted.write_text("\n".join(tools))
        options = ["--universal", "--generate-hashes", "--upgrade", "--python-version=3.11"]
        options += ["--no-annotate", "--no-header", "-c", ".ci/constraints.txt"]
        session.run("uv", "pip", "compile", *options, str(wanted), "-o", str(_lock(name)))


def _benchmark(session: nox.Session, *arguments: str) -> None:
    session.run("python", *arguments, env={"PYTHONPATH": str(ROOT / "benchmarks")})


def _lock(tools: str) -> Path:
    return ROOT / ".ci" / "locks" / f"{tools}.txt"


def _install_tools(session: nox.Session, tools: str) -> None:
    session.install("--no-compile", "--require-hashes", "-r", str(_lock(tools)))


def _install(
    session: nox.Session, *packages: str, extra: str | None = None, **settings: str
) -> list[str]:
    """Install packages with what they declare, siblings from this checkout; their wheels."""
    wanted = list(dict.fromkeys(p for name in packages for p in (*NEEDS[name], name)))
    wheels = {name: str(_wheel(session, name, **settings)) for name in wanted}
    suffix = f"[{extra}]" if extra else ""
    session.install(*PIP, *(w + suffix * (name in packages) for name, w in wheels.items()))
    return list(wheels.values())


def _numba_cache(session: nox.Session) -> Path:
    """The folder of what numba compiles of the packages installed, one for each of their states.

    numba compiles a function anew when the time of its file has changed, as each installation
    changes it, and not when another file has changed that the function uses. So a file here gets a
    time that follows from its contents, and the folder's name comes from the contents of the files
    that have compiled functions and of all that these import.
    """
    files: dict[str, Path] = {}
    packages = ("gs_order", "gs_raster", "gs_train")
    for site in Path(session.virtualenv.location).glob("lib/python*/site-packages"):
        for file in (f for name in packages for f in site.glob(f"{name}/**/*.py")):
            module = ".".join(file.relative_to(site).with_suffix("").parts)
            files[module.removesuffix(".__init__")] = file
    texts = {name: file.read_text() for name, file in files.items()}
    for name, file in files.items():
        seconds = zlib.crc32(texts[name].encode())
        os.utime(file, (seconds, seconds))
    used = [name for name, text in texts.items() if re.search(r"^from numba ", text, re.MULTILINE)]
    for name in used:  # grows meanwhile
        imported = re.findall(r"^from (gs_[\w.]+) import", texts[name], re.MULTILINE)
        used += [each for each in imported if each in texts and each not in used]
    key = hashlib.sha256("".join(f"{name}\n{texts[name]}" for name in sorted(used)).encode())
    return session.cache_dir / "numba" / key.hexdigest()[:16]


def _wheel(session: nox.Session, package: str, **settings: str) -> Path:
    """The package's wheel, built once for each state of its sources, interpreter and options."""
    folder = ROOT / "packages" / package
    python = session.run_install(
        "python", "-c", "import sys; print(sys.implementation.cache_tag)", silent=True
    )
    if python is None:  # nox -R: nothing is installed
        return folder
    is_sanitized = "GS_SANITIZE" in settings
    # With a sanitizer's checks gcc warns of what it no longer sees through.
    options = {"GS_CUDA": "AUTO", "GS_WERROR": "OFF" if is_sanitized else "ON"} | settings
    key = hashlib.sha256(repr((python, options, os.environ.get("CUDAARCHS"))).encode())
    sources = [folder, ROOT / "cpp" / "include", ROOT / "cmake"]
    for path in sorted(f for source in sources for f in _sources(source)):
        key.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    out = session.cache_dir / "wheels" / f"{package}-{key.hexdigest()[:16]}"
    if not out.exists():
        defines = [f"-Ccmake.define.{name}={value}" for name, value in options.items()]
        session.run_install(
            *("python", "-m", "pip", "wheel", "--no-deps", "-w", f"{out}.tmp", str(folder)),
            *(defines if package in NATIVE else ()),
            *(["-Cinstall.strip=false"] if is_sanitized else []),
        )
        Path(f"{out}.tmp").rename(out)
    (wheel,) = out.glob("*.whl")
    return wheel


def _sources(folder: Path) -> list[Path]:
    """What a wheel is built from."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not {"build", "tests", "__pycache__"} & set(path.relative_to(folder).parts)
    ]


def _tracked(session: nox.Session, pattern: str) -> list[Path]:
    listed = session.run("git", "ls-files", pattern, external=True, silent=True)
    return [ROOT / name for name in str(listed).split()]
