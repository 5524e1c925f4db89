"""Give mutated files of every kind to tikas, and count what happens; exit with 1 if anything but a clear error did.

    python benchmarks/fuzz.py                          # 20,000 model and snapshot files, 10,000 files of data
    python benchmarks/fuzz.py --cases 60               # so many of each kind
    python benchmarks/fuzz.py --kind csv --first 1234 --cases 1   # one case again

Case N of a kind is always the same file. Most are files of tikas or of data with some bytes changed, cut out,
repeated or put in; of model files and snapshots, half are forged: their header or tensors are changed, and their
checksum is right. Each is read as a user would read it: `tikas.load`, a fit that resumes, `tikas train` or
`tikas predict`.

A case is "accepted" (the file is still fine: the same predictions as of the file before its mutation, unless it is
forged, or exit code 0) or "refused" (`ModelFileError`, or exit code 2 and a line on standard error). Anything else is a
failure: another error, a traceback, a crash, more than 10 seconds, a program or unpickling started, a file written
elsewhere, and while model files and snapshots are read, an allocation of more than ten times the file (and 1 MiB).

Each kind runs in a process of its own, which is started again after a crash. Memory is measured by forbidding it:
before each case, the limit of the process's address space is set to what it has plus ten times the file.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

import tikas
from tikas import LadderClassifier, LadderRegressor
from tikas.cli import main as run_command
from tikas.training.checkpoint import ModelFileError, read_tensors, write_tensors
from tikas.training.trainer import _is_out_of_memory

MAX_SECONDS = 10
MEMORY_FACTOR = 10
"""Times the size of a model file that may be allocated while it is read."""
SPARE_BYTES = 2**20
"""Added to that: the interpreter's and the C library's own blocks."""
CASES = {"model": 14_000, "snapshot": 6000, "csv": 2000, "parquet": 2000, "arrays": 2000, "idx": 2000, "images": 2000}
FORBIDDEN = "os.system os.exec os.posix_spawn os.fork subprocess.Popen pickle.find_class ctypes.dlopen socket.connect"
"""Events that Python reports to audit hooks, and that reading a file must not cause."""
ALLOWED = ("ctypes.dlopen", ("libnvidia-ml.so.1",))
"""What torch does to count GPUs, in its builds for them."""
ODD_TEXTS = "\"|'|,|;|\t|\n|\r|\r\n|=1+1|nan|inf|-inf|1e400|1e30|-1|?|NA|true|0x1f|1_0|é"
ODD_BYTES = (
    *(text.encode() for text in ODD_TEXTS.split("|")),
    *(b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"9" * 400),
    *(bytes([value] * size) for value in (0, 1, 0x7F, 0x80, 0xFF) for size in (1, 4, 8)),
    *(struct.pack(form, value) for form in ("<I", ">I", "<Q", ">Q") for value in (2**31 - 1, 2**31, 2**20)),
)
ODD_VALUES = (None, True, False, 0, -1, 1, 1.5, 10**9, 10**30, -(10**30), 1e300, float("nan"), float("inf"), "", "x")
ODD_VALUES += ([], {}, [[]], [0] * 1000, "\x00", "__import__('os').system('touch executed')", "../../etc/passwd")
COLUMNS = {"length": 3.0, "width": 0.4, "weight": 50.0}
TRAINING = ("--network", "4", "--epochs", "1", "--batch-size", "10", "--no-baseline", "--quiet", "--output", "new")
TABLE_TRAINING = (*TRAINING, "--unlabeled", "")

Judge = Callable[[Path], str]
"""Reads a file and returns "accepted" or "refused"; raises any error that a user should not get."""


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return the content with one to four changes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(content) + 1)
        if rng.random() < 0.5:  # where most formats have their header
            place = min(place, rng.randrange(400))
        end = min(len(content), place + rng.choice((1, 1, 4, 16, 300)))
        before, cut, after = content[:place], content[place:end], content[end:]
        kind = rng.randrange(7)
        if kind == 0:  # flip a bit
            cut = bytes([cut[0] ^ 1 << rng.randrange(8)]) + cut[1:] if cut else b""
        elif kind == 1:
            cut = rng.randbytes(len(cut))
        elif kind == 2:
            cut = rng.choice(ODD_BYTES)
        elif kind == 3:
            cut = rng.choice(ODD_BYTES) + cut
        elif kind == 4:
            cut = b""
        elif kind == 5:
            cut = cut * rng.choice((2, 50))
        elif rng.random() < 0.3:
            cut = after = b""  # truncated
        content = before + cut + after
    return content


def forge(tensors: Mapping[str, torch.Tensor], header: Any, rng: random.Random) -> tuple[dict[str, torch.Tensor], Any]:
    """Return tensors and header of a file with one of them changed."""
    tensors, header = dict(tensors), json.loads(json.dumps(header))
    if rng.random() < 0.7:
        _forge_value(header, rng)
        return tensors, header
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    kind = rng.randrange(6)
    if kind == 0:
        tensors[name + rng.choice((".more", "\x00", "0"))] = tensor
    elif kind == 1:
        tensors[name] = tensor.flatten()[: rng.randrange(tensor.numel() + 1)]
    elif kind == 2:
        tensors[name] = tensor.to(rng.choice((torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16)))
    elif kind == 3:
        tensors[name] = torch.full_like(
            tensor, rng.choice((0, 1, float("nan")) if tensor.is_floating_point() else (0, 1))
        )
    elif kind == 4:
        tensors[name] = tensor.unsqueeze(0)
    return tensors, header


def _forge_value(tree: Any, rng: random.Random) -> None:
    """Change, remove or double one value somewhere in a JSON tree."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = rng.choice(keys)
        if isinstance(tree[key], dict | list) and tree[key] and rng.random() < 0.7:
            tree = tree[key]
            continue
        if rng.random() < 0.2:
            del tree[key]
        elif isinstance(tree, list) and rng.random() < 0.2:
            tree.append(tree[key])
        else:
            tree[key] = rng.choice(ODD_VALUES)
        return


# What is read


class Kind:
    """Files of one kind in the current folder. `case` writes a mutated one and returns how it is judged."""

    limited = False
    """Whether the memory is limited to a multiple of the file's size."""

    def case(self, rng: random.Random) -> tuple[Path, Judge]:
        raise NotImplementedError


class Models(Kind):
    limited = True

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        rows, images = rng.normal(size=(60, 5)), rng.random((20, 1, 8, 8), np.float32)
        quick: dict[str, Any] = {"epochs": 2, "batch_size": 20, "random_state": 0}
        names = np.array(["cat", "dog", "ä"])[np.arange(60) % 3]
        frame = pd.DataFrame(rows, columns=list("abcde"))
        mixed = frame.assign(
            a=frame["a"].where(frame["a"] < 1),
            city=[f"city {number % 45}" for number in range(60)],
            day=pd.date_range("2020-01-01", periods=60, freq="17h"),
            on=np.arange(60) % 3 == 0,
        )
        self.models = [
            (LadderClassifier((120, 60), n_members=2, preprocess="standardize", **quick).fit(frame, names), frame),
            (LadderRegressor((150, 50), **quick).fit(rows, rows[:, 0]), rows),
            (
                LadderClassifier(("conv 16 3", "max 2", 40), preprocess="whiten", **quick).fit(
                    images, np.arange(20) % 2
                ),
                images,
            ),
            (LadderClassifier((60, 30), **quick).fit(mixed, names), mixed),
        ]
        self.files = [model.save(f"model{number}") for number, (model, _) in enumerate(self.models)]
        self.parts = [read_tensors(file) for file in self.files]
        self.predictions = [model.predict(rows) for model, rows in self.models]

    def case(self, rng: random.Random) -> tuple[Path, Judge]:
        number, path, forged = rng.randrange(len(self.files)), Path("mutated"), rng.random() < 0.5
        if forged:
            write_tensors(path, *forge(*self.parts[number], rng))
        else:
            path.write_bytes(mutate(self.files[number].read_bytes(), rng))

        def judge(path: Path) -> str:
            try:
                loaded = tikas.load(path)
            except ModelFileError as error:
                _check_memory(error)
                return "refused"
            limit_memory(None)
            rows, expected = self.models[number][1], self.predictions[number]
            if isinstance(rows, pd.DataFrame) and loaded.encoder_ is None:
                rows = rows.to_numpy()
            elif isinstance(rows, pd.DataFrame):
                rows = rows.set_axis(getattr(loaded, "feature_names_in_", range(rows.shape[1])), axis=1)
            same = loaded.predict(rows) == expected
            assert forged or same.all(), "another model"  # a forged file may have other values that are valid
            return "accepted"

        return path, judge


class Snapshots(Kind):
    limited = True

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows, self.y = rng.normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3
        self.whole = self._estimator("unused").fit(self.rows, self.y)
        stopped = self._estimator("snapshots")
        update, left = tikas.training.engines.EagerEngine.update, iter(range(10))

        def stop(*arguments: Any) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return update(*arguments)

        tikas.training.engines.EagerEngine.update = stop
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stopped.fit(self.rows, self.y)
        tikas.training.engines.EagerEngine.update = update
        self.files = sorted(Path("snapshots").glob("*.safetensors"))
        assert len(self.files) == 2
        self.contents = [file.read_bytes() for file in self.files]
        self.parts = [read_tensors(file) for file in self.files]

    def _estimator(self, folder: str) -> LadderClassifier:
        return LadderClassifier(
            (60, 30),
            epochs=4,
            batch_size=20,
            random_state=0,
            checkpoint=folder,
            checkpoint_every=0,
            costs=(10, 1, 1, 1),
        )

    def case(self, rng: random.Random) -> tuple[Path, Judge]:
        forged = rng.random() < 0.5
        Path("snapshots").mkdir(exist_ok=True)
        number, both = rng.randrange(2), rng.random() < 0.5
        for file, content in zip(self.files, self.contents, strict=True):
            file.write_bytes(content)
        for each in (0, 1) if both else (number,):
            if forged:
                write_tensors(self.files[each], *forge(*self.parts[each], rng))
            else:
                self.files[each].write_bytes(mutate(self.contents[each], rng))

        def judge(_: Path) -> str:
            try:
                resumed = self._estimator("snapshots").fit(self.rows, self.y)
            except ModelFileError as error:
                _check_memory(error)
                return "refused"
            except (ValueError, ArithmeticError) as error:  # of another fit, or weights with which it diverges
                if not forged:
                    raise AssertionError("not a ModelFileError") from error
                return "refused"
            if not forged:
                assert (resumed.predict_proba(self.rows) == self.whole.predict_proba(self.rows)).all(), "another model"
            return "accepted"

        return self.files[number], judge


class Command(Kind):
    """Files of data for `tikas train` and `tikas predict`, each whole ones by name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.arguments: list[tuple[str, ...]] = []

    def case(self, rng: random.Random) -> tuple[Path, Judge]:
        path = Path(rng.choice(sorted(self.files)))
        path.write_bytes(mutate(self.files[str(path)], rng))
        arguments = [str(path) if word == "FILE" else word for word in rng.choice(self.arguments)]

        def judge(path: Path) -> str:
            code, errors = _run(arguments)
            path.write_bytes(self.files[str(path)])
            if code == 0:
                return "accepted"
            assert code == 2, f"{' '.join(arguments)}: exit code {code}: {errors}"
            last = errors.strip().splitlines()[-1]
            assert last.startswith("tikas: "), f"{' '.join(arguments)}: {errors}"
            assert len(last) < 2000, f"a line of {len(last)} characters"
            return "refused"

        return path, judge

    def _table(self) -> pd.DataFrame:
        rng = np.random.default_rng(0)
        table = pd.DataFrame({name: rng.normal(size=40).round(2) * scale for name, scale in COLUMNS.items()})
        table["city"] = np.array(["Oulu", "Turku", None], dtype=object)[rng.integers(0, 3, 40)]
        table["day"] = pd.date_range("2020-01-01", periods=40).strftime("%d.%m.%Y")
        table["kind"] = np.array(["cat", "dog", None], dtype=object)[rng.integers(0, 3, 40)]
        table["price"] = rng.normal(size=40).round(2)
        return table

    def _save_model(self, rows: Any, name: str = "model") -> None:
        LadderClassifier((4,), epochs=1, batch_size=10).fit(rows, ["cat", "dog"] * (len(rows) // 2)).save(name)

    def _use_tables(self) -> None:
        of_price = ("--target", "price", "--task", "regression", "--ignore", "kind")
        self.arguments = [
            ("train", "--data", "FILE", "--target", "kind", "--ignore", "price", *TABLE_TRAINING),
            ("train", "--data", "FILE", *of_price, *TABLE_TRAINING),
            ("predict", "model", "FILE", "--target", "kind"),
            ("predict", "mixed", "FILE", "--target", "kind", "--id", "city", "-o", "new.csv"),
        ]
        self._save_model(self._table()[list(COLUMNS)])
        self._save_model(self._table()[[*COLUMNS, "city", "day"]], "mixed")


class Csv(Command):
    def __init__(self) -> None:
        super().__init__()
        text = self._table().to_csv(index=False)
        self.files = {"rows.csv": text.encode(), "rows.tsv": text.replace(",", "\t").encode()}
        self.files["other.csv"] = b"\xef\xbb\xbf" + text.replace("cat", '"a ""b"", c"').replace("\n", "\r\n").encode()
        self._use_tables()


class Parquet(Command):
    def __init__(self) -> None:
        super().__init__()
        for compression in ("snappy", "gzip", "none"):
            file = Path(f"{compression}.parquet")
            self._table().to_parquet(file, compression=None if compression == "none" else compression)
            self.files[str(file)] = file.read_bytes()
        self._use_tables()


class Arrays(Command):
    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        arrays = {"x": rng.normal(size=(30, 3)), "y": np.arange(30) % 3}
        np.savez("rows.npz", **arrays)
        np.savez_compressed("packed.npz", **arrays)
        np.save("rows.npy", arrays["x"])
        self.files = {name: Path(name).read_bytes() for name in ("rows.npz", "packed.npz", "rows.npy")}
        self._save_model(arrays["x"])
        self.arguments = [("predict", "model", "FILE"), ("train", "--data", "FILE", *TRAINING)]


class Idx(Command):
    def __init__(self) -> None:
        import gzip

        super().__init__()
        rng = np.random.default_rng(0)
        for name, count in (("train", 40), ("t10k", 20)):
            images = struct.pack(">4I", 0x803, count, 28, 28) + rng.integers(0, 256, (count, 784), np.uint8).tobytes()
            labels = struct.pack(">2I", 0x801, count) + bytes(number % 10 for number in range(count))
            for kind, content in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
                for folder, file in (("plain", content), ("packed", gzip.compress(content, mtime=0))):
                    path = Path(folder, f"{name}-{kind}" + ".gz" * (folder == "packed"))
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(file)
                    self.files[str(path)] = file
        self.arguments = [
            ("train", "--data", "mnist", "--data-dir", folder, "--labels", "20", "--noise", "0.3", *TRAINING)
            for folder in ("plain", "packed")
        ]


class Images(Command):
    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        for name in ("cats", "dogs"):
            Path("photos", name).mkdir(parents=True, exist_ok=True)
            for suffix in ("png", "jpg", "bmp", "webp"):
                path = Path("photos", name, f"one.{suffix}")
                Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8)).save(path)
                self.files[str(path)] = path.read_bytes()
        rows = rng.random((8, 3, 12, 12), np.float32)
        LadderClassifier(("conv 3 3", "max 2"), epochs=1, batch_size=4).fit(rows, ["cats", "dogs"] * 4).save("model")
        self.arguments = [("predict", "model", "photos"), ("train", "--data", "photos", *TRAINING)]


KINDS: dict[str, type[Kind]] = {
    "model": Models,
    "snapshot": Snapshots,
    "csv": Csv,
    "parquet": Parquet,
    "arrays": Arrays,
    "idx": Idx,
    "images": Images,
}


def _run(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it printed to standard error."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            run_command(arguments)
        except SystemExit as stop:
            return int(stop.code or 0), errors.getvalue()
    return 0, errors.getvalue()


# Workers


def _check_memory(error: Exception) -> None:
    """Raise if an error was caused by a lack of memory: a file made tikas allocate too much."""
    if _is_out_of_memory(error):
        raise AssertionError(f"more than {MEMORY_FACTOR} times the file was allocated") from error


def limit_memory(path: Path | None) -> None:
    """Limit the address space to what the process has and a multiple of the file; None removes the limit."""
    size, hard = resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]
    if path is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + MEMORY_FACTOR * path.stat().st_size + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))


def _work(name: str, first: int, cases: int, folder: str) -> None:
    """Judge cases one after the other in an empty folder; print a line of JSON for each."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.chdir(folder)
    kind, used = KINDS[name](), []
    for number in range(-3, 0):  # imports modules and fills caches
        path, judge = kind.case(random.Random(f"{name} {number}"))
        judge(path)

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN.split() and (event, arguments) != ALLOWED:
            used.append(f"{event} {arguments}")

    sys.addaudithook(record)
    for number in range(first, first + cases):
        path, judge = kind.case(random.Random(f"{name} {number}"))
        files = {*os.listdir(), "new", "new.csv", "snapshots"}
        faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
        started, used[:] = time.perf_counter(), []
        try:
            limit_memory(path if kind.limited else None)
            outcome = judge(path)
        except BaseException as error:
            outcome = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        limit_memory(None)
        faulthandler.cancel_dump_traceback_later()
        if used or not files.issuperset(os.listdir()):
            outcome = f"used {used}, wrote {sorted(set(os.listdir()) - files)}"
        seconds = time.perf_counter() - started
        print(json.dumps({"case": number, "outcome": outcome, "seconds": seconds}), flush=True)


def fuzz(name: str, first: int, cases: int) -> dict[str, Any]:
    """Judge cases of a kind in a process of its own, started again after each crash; return the counts."""
    counts: Counter[str] = Counter()
    failures, slowest, end = [], 0.0, first + cases
    # Blocks of 64 kB are taken from the system and given back, so that the limit of the memory counts them.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    while first < end:
        command = [sys.executable, __file__, "--kind", name, "--first", str(first), "--cases", str(end - first)]
        with tempfile.TemporaryDirectory() as folder:
            command += ["--worker", folder]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            slowest, first = max(slowest, line["seconds"]), line["case"] + 1
            fine = line["outcome"] in ("accepted", "refused")
            counts[line["outcome"] if fine else "failed"] += 1
            failures += [] if fine else [f"{name} {line['case']}: {line['outcome']}"]
        if first < end:
            counts["failed"] += 1
            failures.append(f"{name} {first}: the process ended with {done.returncode}: {done.stderr[-1500:]}")
            first += 1
    return {"cases": cases, **counts, "slowest": slowest, "failures": failures}


def main() -> int:
    """Print a line for each kind of file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--cases", type=int, metavar="N", help="cases of each kind (default: as many as in CASES)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first of these cases")
    parser.add_argument("--worker", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options.kind[0], options.first, options.cases, options.worker)
        return 0
    failures = []
    print("| file | cases | accepted | refused | failed | slowest case |\n| --- | --- | --- | --- | --- | --- |")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = pool.map(lambda name: fuzz(name, options.first, options.cases or CASES[name]), options.kind)
        for name, found in zip(options.kind, counts, strict=True):
            figures = [found["cases"], *(found.get(outcome, 0) for outcome in ("accepted", "refused", "failed"))]
            print(f"| {name} | {' | '.join(map(str, figures))} | {found['slowest']:.2f} s |", flush=True)
            failures += found["failures"]
    print("\n".join(failures), end="\n" * bool(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
