"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["scikit-learn", "PyTorch", "a network that exists"])
def test_an_example_of_the_readme_runs(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, "README.md", "exec"), {})
    said = capsys.readouterr().out
    if said:
        assert float(said.split()[0]) > 0.9


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (Path(__file__).parent.parent / ".ci" / "run").read_text()
    assert "make test" in README
    assert script.rstrip().endswith("make test")
