"""The command line as a whole: help, version, exit codes, and what is printed to standard error."""

import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import typer

import tikas
from tikas.cli import _repeat_list_options, app


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Register a command `verb` for the time of a test."""

    def register(function: Callable[[], None]) -> None:
        monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])
        app.command("verb")(function)

    return register


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "tikas", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"tikas {tikas.__version__}\n"


def test_help_lists_every_command(run, capsys) -> None:
    assert run("--help") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("train", "predict", "reproduce", "--version"))


@pytest.mark.parametrize("name", ["train", "predict", "reproduce"])
def test_every_command_has_help_with_examples(name: str, run, capsys) -> None:
    assert run(name, "--help") == 0
    assert f"\n  tikas {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["trian"], "trian"),
        (["train", "--nois", "3"], "--nois"),
        (["train", "mine.csv"], "mine.csv"),
        (["train", "--epochs", "0"], "--epochs"),
        (["train", "--epochs", "many"], "--epochs"),
        (["train", "--epochs"], "--epochs"),
        (["train", "--members", "0"], "--members"),
        (["train", "--seed", "-1"], "--seed"),
        (["train", "--labels", "0"], "labels=0"),
        (["train", "--labels", "many"], "--labels"),
        (["train", "--labels", "7"], "labels=7"),
        (["train", "--costs", "1", "few"], "--costs"),
        (["train", "--costs"], "--costs"),
        (["train", "--denoiser", "magic"], "magic"),
        (["train", "--batch-size", "1"], "--batch-size"),
        (["train", "--annealed", "2"], "--annealed"),
        (["train", "--noise", "-1"], "noise"),
        (["train", "--task", "regression"], "--task"),
        (["train", "--target", "kind"], "--target"),
        (["train", "--ignore", "id"], "--ignore"),
        (["train", "--device", "abacus"], "abacus"),
        (["train", "--network", "conv_tiny"], "conv_tiny"),
        (["train", "--network", "conv 8 9"], "(1, 8, 8)"),
        (["train", "--network", "conv_pool_cnn_c"], "12 by 12"),
        (["train", "--network", "conv_pool_cnn_c", "--costs", "9", "1"], "one denoising cost"),
        (["train", "--data", "minst"], "mnist"),
        (["train", "--data", "absent.csv", "--target", "kind"], "absent.csv"),
        (["train", "--data", "photos/of-flowers"], "photos/of-flowers"),
        (["train", "--data", ""], "''"),
        (["predict"], "MODEL"),
        (["predict", "m.safetensors", "rows.csv", "more.csv"], "more.csv"),
        (["predict", "absent.safetensors", "rows.csv"], "absent.safetensors"),
        (["predict", "m.safetensors", "rows.csv", "--device", "abacus"], "abacus"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_what_is_wrong(arguments: list[str], named: str, run, capsys) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("60 rows\nare too few"), 2),
        (FileNotFoundError("no rows"), 2),
        (ArithmeticError("diverged"), 1),
        (ImportError("no pillow"), 1),
        (OSError("disk full"), 1),
        (RuntimeError("no memory"), 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error: Exception, code: int, verb, run, capsys) -> None:
    def command() -> None:
        raise error

    verb(command)
    assert run("verb") == code
    assert capsys.readouterr().err == f"tikas: {' '.join(str(error).split())}\n"


def test_an_interrupt_exits_with_130(verb, run) -> None:
    def command() -> None:
        raise KeyboardInterrupt

    verb(command)
    assert run("verb") == 130


def test_an_exit_code_of_a_command_is_kept(verb, run) -> None:
    def command() -> None:
        raise typer.Exit(1)

    verb(command)
    assert run("verb") == 1


def test_a_warning_is_one_line_shown_once_and_the_callers_settings_are_restored(verb, run, capsys) -> None:
    def command() -> None:
        warnings.simplefilter("always")
        for _ in range(2):
            warnings.warn("60 rows are fewer\nthan a batch", UserWarning, stacklevel=1)

    verb(command)
    before = warnings.showwarning, list(warnings.filters)
    assert run("verb") == 0
    assert capsys.readouterr().err == "tikas: warning: 60 rows are fewer than a batch\n"
    assert (warnings.showwarning, list(warnings.filters)) == before


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("--network 256 128 --epochs 3", "--network 256 --network 128 --epochs 3"),
        ("--network --epochs 3", "--network --epochs 3"),
        ("--noise 0.3 -1 -o m", "--noise 0.3 --noise -1 -o m"),
        ("--network=mlp --ignore a b", "--network=mlp --ignore a --ignore b"),
        ("m.safetensors rows.csv --target kind more.csv", "m.safetensors rows.csv --target kind more.csv"),
    ],
)
def test_values_that_follow_a_list_option_all_belong_to_it(given: str, read: str) -> None:
    assert _repeat_list_options(["train", *given.split()]) == ["train", *read.split()]
