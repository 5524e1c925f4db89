"""Whether code can be compiled on this machine: by a compiler that works, and for a GPU by Triton too."""

import os
import subprocess
import sysconfig
from importlib.util import find_spec
from shutil import which

import torch


def hindrance(device: torch.device) -> str | None:
    """What keeps code for this device from being compiled; None where nothing does.

    torch.compile needs a C++ compiler for a CPU, and Triton a C compiler for a GPU. Both need Python's headers, which
    many systems have in a package of their own. So the compiler is asked to read them, which takes it a moment.

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
    command = [compiler, "-x", language.lower(), "-fsyntax-only", *(f"-I{folder}" for folder in folders), "-"]
    done = subprocess.run(command, input=b"#include <Python.h>\n", capture_output=True, check=False)
    return f"the {language} compiler ({compiler}) finds no Python.h" if done.returncode else None
