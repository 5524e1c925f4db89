"""Whether code can be compiled on this machine: by a compiler that works, and for a GPU by Triton too."""

import os
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class SlowerWarning(UserWarning):
    """Training is right, and slower than it could be on this machine."""


class Compiler:
    """Compiles the functions of one program when they are first called; should that fail, all of them run as they are.

    `hindrance` knows what is wrong with most machines before that. A folder that cannot be written, or a library that
    is missing, only shows when something is compiled. Then a word is said about it, once.

    Parameters
    ----------
    passes
        What compiled code goes through besides, by the names that torch's compiler has for their times.

    Examples
    --------
    >>> Compiler()(abs)  # nothing is compiled before it is called
    <function Compiler.__call__.<locals>.run at 0x...>
    """

    def __init__(self, passes: Mapping[str, object] | None = None) -> None:
        self._options = None if passes is None else dict(passes)
        self._failed = False

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        program: Callable[P, R] = torch.compile(function, dynamic=False, options=self._options)  # type: ignore[arg-type]

        def run(*arguments: P.args, **named: P.kwargs) -> R:
            if self._failed:
                return function(*arguments, **named)
            try:
                return program(*arguments, **named)
            except Exception as error:
                from torch._dynamo.exc import TorchDynamoException  # slow to import, and there by now

                if not isinstance(error, (TorchDynamoException, OSError)):
                    raise
                cause = getattr(error, "inner_exception", error)
                reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
            message = f"Training goes on without compiled code, and slower, because compiling failed: {reason}"
            warnings.warn(message, SlowerWarning, stacklevel=2)
            self._failed = True
            return function(*arguments, **named)

        return run


def hindrance(device: torch.device) -> str | None:
    """What keeps code for this device from being compiled; None where nothing does.

    torch.compile needs a C++ compiler for a CPU, and Triton a C compiler for a GPU. Both need Python's headers, which
    many systems have in a package of their own. So the compiler is asked to make a library that includes them, which
    takes it a moment.

    Examples
    --------
    >>> why = hindrance(torch.device("cpu"))  # on a machine without a compiler: 'there is no C++ compiler (g++)'
    >>> why is None or "C++" in why
    True
    """
    if device.type != "cuda":
        return _hindrance_of("C++", os.environ.get("CXX", "g++"))
    if not find_spec("triton"):
        return "Triton is not installed"
    return _hindrance_of("C", os.environ.get("CC", "gcc" if which("gcc") else "clang"))


def _hindrance_of(language: str, compiler: str) -> str | None:
    if not which(compiler):
        return f"there is no {language} compiler ({compiler})"
    folders = {sysconfig.get_path("include"), sysconfig.get_path("include", "posix_prefix")}
    reads = [compiler, "-x", language.lower(), *(f"-I{folder}" for folder in folders), "-"]
    threads = ["-fopenmp"] if language == "C++" and sys.platform == "linux" else []  # as torch's compiled code does
    try:
        with TemporaryDirectory() as place:
            if _succeeds([*reads, "-shared", "-fPIC", *threads, "-o", str(Path(place, "tried"))]):
                return None
    except OSError:
        return "there is no folder for temporary files"
    fails = "cannot make a library" if _succeeds([*reads, "-fsyntax-only"]) else "finds no Python.h"
    return f"the {language} compiler ({compiler}) {fails}"


def _succeeds(command: list[str]) -> bool:
    done = subprocess.run(command, input=b"#include <Python.h>\n", capture_output=True, check=False)
    return not done.returncode
