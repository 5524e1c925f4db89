"""The documents: their examples run, their links lead somewhere, and the records that they name exist."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = [
    pytest.param(example, id=f"{page}-{number}")
    for page in ("usage", "pytorch", "scikit-learn", "report")
    for number, example in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), flags=re.DOTALL), 1
    )
]
MAX_README_WORDS = 900


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore:::(lightning_fabric|accelerate)")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example: str) -> None:
    for framework in ("lightning_fabric", "accelerate"):
        if framework in example:
            pytest.importorskip(framework)
    exec(compile(example, "example", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = without_code(page)
    linked = [page.parent / link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in link]
    named = [ROOT / name for name in re.findall(r"`((?:results|benchmarks|tests|src|docs)/[\w./-]+)`", text)]
    assert [path for path in [*linked, *named] if not path.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_and_targets_of_make_exist(page: Path) -> None:
    text = page.read_text()
    scripts = [ROOT / path for path in re.findall(r"python (benchmarks/\w+\.py)", text)]
    assert [path for path in scripts if not path.exists()] == []
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, flags=re.MULTILINE)) <= set(targets)


def test_the_readme_is_short() -> None:
    assert len(without_code(ROOT / "README.md").split()) < MAX_README_WORDS


def test_the_page_on_tables_shows_what_is_printed_now(tmp_path: Path) -> None:
    sys.path.append(str(ROOT / "docs/examples"))
    import ten_minutes

    from tikas.data.tables import UnclearLabelsError, read_table

    ten_minutes.make_tables(tmp_path)
    page = (ROOT / "docs/ten-minutes.md").read_text()
    assert str(read_table(tmp_path / "diagnosis.csv", "diagnosis").summary) in page
    assert "\n".join((tmp_path / "diagnosis.csv").read_text().splitlines()[:4]) in page
    marked = tmp_path / "marked.csv"
    marked.write_text(re.sub(";$", ";unknown", (tmp_path / "diagnosis.csv").read_text(), flags=re.MULTILINE))
    with pytest.raises(UnclearLabelsError) as unclear:
        read_table(marked, "diagnosis")
    assert str(unclear.value).removeprefix(f"{tmp_path}/") in page
