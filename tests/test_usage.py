"""What the command line says of a wrong use, on a terminal that shows colours too."""

import os
import subprocess
import sys

import pytest

pty = pytest.importorskip("pty", reason="terminals are of Unix")


@pytest.mark.parametrize(
    ("arguments", "substance"),
    [
        (["train", "--labels", "many"], "Expected --labels INT|{all}"),
        (["train", "--members", "many"], "invalid literal"),
        (["train", "--epochs", "many"], "--epochs: 'many': expected a whole number. Expected --epochs N."),
        (["train", "--costs", "1", "few"], "--costs: '1', 'few': expected numbers. Expected --costs X…."),
        (["train", "--epoch", "3"], "Perhaps you meant --epochs N"),
        (["predict"], "Missing"),
        (["train", "--epochs"], "tikas: Missing value for argument '--epochs'. Expected 1 values. (tikas train --help"),
        (["predict", "--model", "m"], "tikas: Missing value for argument 'model'."),
        (["train", "mine.csv"], "Unrecognized options: mine.csv. Put its flag before it, such as --data"),
        (["train", "-epochs", "3"], "Unrecognized options: -epochs, 3. (tikas train --help"),
        (["predict", "m", "mine.csv", "more.csv"], "Unrecognized options: more.csv. (tikas predict --help"),
        (["climb"], "climb"),
        (["train", "--members", "0"], "tikas: --members 0: expected at least 1. (tikas train --help"),
        (["reproduce"], "tikas: Say what to reproduce"),
    ],
)
def test_on_a_terminal_a_usage_error_is_the_same_line_as_in_a_file(arguments: list[str], substance: str) -> None:
    command = [sys.executable, "-m", "tikas.cli", *arguments]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    piped = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    ours, theirs = pty.openpty()
    shown = subprocess.run(command, stdout=theirs, stderr=theirs, check=False, env=environment)
    os.close(theirs)
    line = os.read(ours, 65_536).decode().replace("\r\n", "\n")
    os.close(ours)
    assert (shown.returncode, line) == (2, piped.stderr)
    assert line.startswith("tikas: ")
    assert substance in line
