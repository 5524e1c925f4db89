"""The README's examples run, and the commands that it names exist."""

import re
import shlex
from pathlib import Path

import pytest

from tikas.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SHELL = "\n".join(re.findall(r"```(?:sh|bash|console)\n(.*?)```", README, flags=re.DOTALL))
COMMANDS = sorted(
    {*re.findall(r"^(?:\$ )?(tikas .*)", SHELL, flags=re.MULTILINE), *re.findall(r"`(tikas [^`]*)`", README)}
)
TARGETS = sorted(set(re.findall(r"\bmake ([a-z]+)", SHELL)))


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, 1 + len(EXAMPLES)))
def test_an_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_and_its_options_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command.replace("\n", " "), comments=True)[1:]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])  # names of options are checked before the help is shown
    assert not stop.value.code, capsys.readouterr().err


def test_the_targets_of_make_exist() -> None:
    assert TARGETS
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(TARGETS) <= set(targets)
