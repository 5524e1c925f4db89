"""Every kernel compiles for an H200, to code that its chip runs, on a machine without a GPU: Triton has the assembler.

A program of its own compiles them, because Triton decides when it is imported whether kernels are interpreted.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed on this machine")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_kernels_of_the_papers_network_compile_for_an_h200(dtype: str, tmp_path: Path) -> None:
    script, source = Path(__file__).with_name("kernels_for_a_gpu.py"), Path(__file__).parents[1] / "src"
    places = {"PYTHONPATH": str(source), "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script, dtype], env=places | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "adam_kernel",
        "climb_back_kernel",
        "climb_kernel",
        "descend_back_kernel",
        "descend_kernel",
        "gather_kernel",
        "top_back_kernel",
        "top_kernel",
    ]
