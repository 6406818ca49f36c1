"""The entry point: light start, exit codes, one line a fault, foreign packages noticed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pearl_cli.__main__ import foreign_packages, main
from pearl_cli.sizes import Size, parse_size

ROOT = Path(__file__).resolve().parents[2]


def run(*args: str, **kwargs: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pearl_cli", *args], cwd=ROOT, capture_output=True, text=True, **kwargs
    )


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_no_heavy_library(flag):
    code = (
        "import sys; from pearl_cli.__main__ import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'numba', 'numpy', 'gguf', 'transformers'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, flag], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_command_in_the_table_shows_its_help(capsys):
    from pearl_cli.main import COMMANDS

    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert "Usage: pearl " + name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["nonsense"], "No such command"),
        (["complete", "--no-such-flag"], "--no-such-flag"),
        (["complete", "-m", "x.gguf"], "-p TEXT"),
        (["bench", "-p", "many"], "whole numbers"),
        (["complete", "-m", "missing.gguf", "-p", "x"], "missing.gguf"),
        (["complete", "-m", "x.gguf", "-p", "x", "--ram", "lots"], "lots"),
        (["complete", "-m", "x.gguf", "-p", "x", "--budget", "140%"], "140%"),
        (["chat", "-sysf", "missing.txt"], "missing.txt"),
        (["chat", "-p", "x", "-f", "x.txt"], "one of the two"),
        (["chat", "-sys", "x", "-sysf", "x.txt"], "one of the two"),
        (["complete", "-p", "x", "--throttle", "0"], "--throttle"),
        (["complete", "-p", "x", "-r", ""], "empty text"),
        (["complete", "-p", "x", "--ram", "16"], "did you mean 16GiB?"),
        (["bench", "-p", "²"], "is not a list of whole numbers"),
        (["complete", "-p", "x", "--temp", "nan"], "--temp"),
        (["chat", "--color"], "pearl chat: Option '--color' requires an argument. (see pearl chat --help)"),
    ],
)
def test_a_users_fault_is_one_line_and_exit_code_2(args, part, capsys):
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert part in err
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(capsys):
    assert main(["complete", "-m", "missing.gguf", "-p", "x", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_another_package_under_one_of_our_names_is_named(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("'''somebody else's'''\n")
    code = "import sys; sys.path[:0] = [%r, %r]; from pearl_cli.__main__ import main; sys.exit(main(['--version']))"
    done = subprocess.run(
        [sys.executable, "-c", code % (str(tmp_path), str(ROOT))],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "'kernels' is " + str(tmp_path / "kernels") in done.stderr
    assert done.stderr.count("\n") == 1


def test_our_own_packages_are_not_foreign():
    assert foreign_packages(ROOT) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", Size(2 << 30)),
        ("1500MiB", Size(1500 << 20)),
        ("1.5g", Size(3 << 29)),
        ("64K", Size(64 << 10)),
        ("4096", Size(4096)),
        ("40%", Size(percent=40.0)),
    ],
)
def test_sizes(text, size):
    assert parse_size(text, allow_percent=True) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 XiB", "0%", "101%", "1e9", "nan"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match=r"size|share"):
        parse_size(text, allow_percent=True)


def test_a_share_of_the_experts():
    assert Size(percent=25.0).of(1000) == 250
    assert Size(n_bytes=7).of(1000) == 7


def test_broken_pipe_is_quiet():
    command = f"{sys.executable} -m pearl_cli --help | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("args", [["--help"], ["plan"], ["plan", "--json"]])
def test_a_closed_pipe_is_no_failure(args):
    # The reader is gone before the first byte, so that even one buffered write meets the broken pipe.
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "pearl_cli", *args], cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_closed_streams_are_no_fault_and_mix_nothing(tiny_path):
    call = f"{sys.executable} -m pearl_cli complete -m {tiny_path} -n 2"
    for closing, code in ((f"{call} -p x >&-", 0), (f"{call} -p x <&- >&- 2>&-", 0), (f"{call} -f missing 2>&-", 2)):
        done = subprocess.run(["bash", "-c", closing], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (code, ""), closing
        assert "Traceback" not in done.stderr


def test_ctrl_c_that_an_extension_module_swallows_is_still_an_interrupt(monkeypatch, capsys):
    def import_under_ctrl_c(name):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numba._devicearray failed to import") from None

    monkeypatch.setattr("pearl_cli.main.importlib.import_module", import_under_ctrl_c)
    assert main(["plan"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_import_error_of_its_own_is_not_hidden(monkeypatch):
    def fail(name):
        raise ImportError(name)

    monkeypatch.setattr("pearl_cli.main.importlib.import_module", fail)
    with pytest.raises(ImportError):
        main(["plan"])


def test_running_a_model_imports_no_torch(tiny_path):
    code = (
        "import sys; from pearl_cli.__main__ import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'triton'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    args = ["complete", "-m", str(tiny_path), "-p", "abc", "-n", "2"]
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_refused_gpu_is_one_line_although_torch_and_triton_were_imported():
    """Triton's bindings list what the process leaves behind, if nobody collects it."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, so nothing is refused")
    command = [sys.executable, "-m", "pearl_cli", "complete", "-p", "x", "--device", "cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("pearl: --device cuda: ")
    assert done.stderr.count("\n") == 1, done.stderr
