"""`pearl eval`: windows, perplexity as transformers computes it, divergences, paired prices, files, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from pearl_cli.__main__ import main
from pearl_cli.evaluate.estimate import Estimate, exp_estimate, mean_estimate
from pearl_cli.evaluate.pareto_plot import front
from pearl_cli.evaluate.token_scores import divergence, log_softmax
from pearl_cli.evaluate.windows import cut_windows
from tests.tiny_gguf import Typed, byte_vocabulary
from tests.tiny_models import hf_logits, tiny_model, write_gguf
from tests.tolerances import PERPLEXITY_RELATIVE

TEXT = "".join(chr(33 + (7 * i * i + 3 * i) % 90) for i in range(200))
PSR = ["--routing", "psr", "--lambda", "0.4", "--residency", "50%", "--evict", "lru"]


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A tiny OLMoE with a byte vocabulary: transformers' model, and its F32 file."""
    vocabulary = byte_vocabulary()
    model = tiny_model("olmoe", vocab_size=len(vocabulary["tokenizer.ggml.tokens"]), num_experts=8)
    plain = {key: value for key, value in vocabulary.items() if not isinstance(value, Typed)}
    metadata = {**plain, "tokenizer.ggml.merges": ["t h"], "tokenizer.ggml.token_type": [1] * 256 + [3] * 3}
    path = write_gguf(model, tmp_path_factory.mktemp("hf") / "tiny.gguf", "olmoe", metadata)
    return model, path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def run_eval(capsys: pytest.CaptureFixture[str], path: Path, text: Path, *args: str) -> dict[str, Any]:
    plain = ["-t", "1", "-ctk", "f32", "-ctv", "f32"]
    assert main(["eval", "-m", str(path), "-f", str(text), *plain, *args, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def hf_nll(model: Any, context: int, first: int) -> np.ndarray:
    """Negative log likelihoods of the scored tokens, from whole windows through transformers."""
    ids = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int64)
    parts = []
    for start in range(0, len(ids) - context + 1, context):
        window = ids[start : start + context]
        log = log_softmax(hf_logits(model, window))
        parts.append(-log[np.arange(first, context - 1), window[first + 1 :]])
    return np.concatenate(parts)


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("score", ["half", "all"])
def test_perplexity_is_that_of_transformers(
    hf: tuple[Any, Path], text: Path, capsys: pytest.CaptureFixture[str], score: str, decoded: bool
) -> None:
    model, path = hf
    nll = hf_nll(model, 64, 32 if score == "half" else 0)
    extra = ["--residency", "50%"] if decoded else ["-ub", "24"]
    done = run_eval(capsys, path, text, "-c", "64", "--score", score, *extra)
    assert (done["n_windows"], done["n_tokens"]) == (3, nll.size)
    assert done["perplexity"]["value"] == pytest.approx(math.exp(nll.mean()), rel=PERPLEXITY_RELATIVE)


def test_steered_routing_is_priced_against_exact(
    hf: tuple[Any, Path], text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = hf
    args = ["-c", "64", "--residency", "50%", "--evict", "lru"]
    done = run_eval(capsys, path, text, *args, "--compare", "--routing psr --lambda .4", "--compare", "")
    steered, same = done["compared"]
    assert done["route_agreement"]["value"] == same["route_agreement"]["value"] == 1
    assert steered["route_agreement"]["value"] < 1
    assert steered["demand_misses"]["value"] < done["demand_misses"]["value"]
    assert steered["copies"]["value"] == pytest.approx(steered["demand_misses"]["value"] + steered["inserted"]["value"])
    ratio = steered["perplexity"]["value"] / done["perplexity"]["value"]
    assert steered["perplexity_price"]["value"] == pytest.approx(ratio - 1)
    assert steered["perplexity_price"]["low"] < ratio - 1 < steered["perplexity_price"]["high"]
    assert steered["kl_divergence"]["value"] > 0
    assert (same["perplexity_price"]["value"], same["perplexity_price"]["high"]) == (0, 0)
    assert (same["kl_divergence"]["value"], same["top1_agreement"]["value"]) == (0, 1)


def test_saved_logits_are_a_base(
    hf: tuple[Any, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = hf
    base = tmp_path / "base.npy"
    run_eval(capsys, path, text, "-c", "64", "--logits", str(base))
    saved = np.load(base)
    assert saved.dtype == np.float32
    assert saved.shape == (93, 259)
    ids = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int64)
    np.testing.assert_allclose(saved[31:62], hf_logits(model, ids[64:128])[32:63], atol=1e-4)
    same = run_eval(capsys, path, text, "-c", "64", "--kld-base", str(base))
    assert same["kl_divergence"]["value"] == 0
    steered = run_eval(capsys, path, text, "-c", "64", "--kld-base", str(base), *PSR)
    own = tmp_path / "own.npy"
    run_eval(capsys, path, text, "-c", "64", "--logits", str(own), *PSR)
    expected = divergence(log_softmax(saved), log_softmax(np.load(own)))
    assert steered["kl_divergence"]["value"] == pytest.approx(expected.mean(), rel=1e-9)
    agreement = (saved.argmax(axis=1) == np.load(own).argmax(axis=1)).mean()
    assert steered["top1_agreement"]["value"] == pytest.approx(agreement)


def test_streaming_with_the_same_logical_cache_gives_the_same_figures(
    hf: tuple[Any, Path], text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = hf
    resident = run_eval(capsys, path, text, "-c", "64", *PSR)
    assert run_eval(capsys, path, text, "-c", "64", *PSR, "--budget", "60%") == resident


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-c", "256"], "the text has 200 tokens"),
        (["-c", "2"], "-c 2: a window to score has at least 4 tokens"),
        (["--routing", "psr"], "--residency 25%"),
        (["-c", "64", "--kld-base", "none.npy"], "--kld-base none.npy: No such file"),
        (["-c", "64", "--logits", "none/x.npy"], "--logits none/x.npy: the folder none does not exist"),
        (["-c", "64", *PSR, "--inserts", "99"], "--inserts 99: only the best 3 of the next router are looked at"),
        (["-c", "64", *PSR, "--steer", "top-m=9"], "--steer top-m=9: a layer of this model has 8 experts"),
        (["-c", "64", "--residency", "50%", "--compare", "psr --top-j 4"], "a token of this model uses 3 experts"),
        (["-c", "64", "--ram", "1KiB"], "the logits of one window of 64 tokens alone take"),
        (["-c", "64", "--ram", "2MiB"], "KiB more for the logits of a window"),
        (["-c", "64", *PSR, "--steer", "bonus=1", "--steer", "bonus=0"], "bonus= is given twice"),
        (["-c", "64", "--lambda", "0.1"], "--lambda"),
        (["-c", "64", "--compare", "--routing magic"], "--compare"),
        (["-c", "64", "--compare", "psr --lamda 1"], "as on the command line, --evict, --lambda, --top-j"),
    ],
)
def test_what_cannot_be_evaluated_is_said(
    hf: tuple[Any, Path], text: Path, capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    assert main(["eval", "-m", str(hf[1]), "-f", str(text), "-t", "1", *args]) in (1, 2)
    assert words in capsys.readouterr().err


def test_base_logits_of_another_text_are_refused(
    hf: tuple[Any, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base.npy"
    np.save(base, np.zeros((4, 259), np.float32))
    assert main(["eval", "-m", str(hf[1]), "-f", str(text), "-c", "64", "--kld-base", str(base)]) == 2
    assert "[4, 259]" in capsys.readouterr().err


def test_the_table_names_settings_and_intervals(
    hf: tuple[Any, Path], text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["eval", "-m", str(hf[1]), "-f", str(text), "-c", "64", "-t", "1", "--residency", "50%"]
    assert main([*args, "--compare", "--routing psr --evict lru"]) == 0
    shown = capsys.readouterr().out
    assert "psr, lambda 0.1, top-j 1, inserts 1, residency 50%, logical cache evicts by lru" in shown
    assert "95 % interval" in shown


def test_windows_do_not_overlap_and_begin_with_bos() -> None:
    ids = list(range(100, 125))
    windows = cut_windows(ids, 8, bos_id=1)
    assert [window.ids[0] for window in windows] == [1, 1, 1]
    assert [window.ids[1:] for window in windows] == [tuple(ids[s + 1 : s + 8]) for s in (0, 8, 16)]
    assert [window.n_scored for window in windows] == [3, 3, 3]
    assert cut_windows(ids, 8, "all")[2].ids == tuple(ids[16:24])
    assert cut_windows(ids, 8, "all")[2].n_scored == 7


def test_errors_of_dependent_tokens_are_those_of_blocks() -> None:
    """Four blocks of equal tokens hold four numbers' worth of knowledge: se = sd / sqrt(4), t = 3.182."""
    means = np.array([1.0, 2.0, 4.0, 5.0])
    estimate = mean_estimate(np.repeat(means, 50), np.repeat(np.arange(4), 50))
    error = means.std(ddof=1) / 2
    assert estimate.value == 3.0
    assert estimate.standard_error == pytest.approx(error)
    assert estimate.high == pytest.approx(3.0 + 3.182 * error)
    assert math.isnan(mean_estimate(means, np.zeros(4)).standard_error)


def test_intervals_cover_as_they_say() -> None:
    """Sums of neighbours correlated within blocks: about 95 of 100 intervals hold the true mean."""
    rng = np.random.default_rng(0)
    blocks = np.repeat(np.arange(12), 16)
    held = 0
    for _ in range(400):
        values = rng.standard_normal(12)[blocks] + rng.standard_normal(blocks.size)
        estimate = mean_estimate(values, blocks)
        held += estimate.low < 0 < estimate.high
    assert 365 <= held <= 395


def test_relative_prices_are_exact_at_their_ends() -> None:
    price = exp_estimate(Estimate(0.01, 0.005, 0.0, 0.02), minus_one=True)
    assert price.value == pytest.approx(math.expm1(0.01))
    assert (price.low, price.high) == (0.0, pytest.approx(math.expm1(0.02)))


def test_the_plot_holds_every_setting_and_its_front(
    hf: tuple[Any, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "p.svg"
    args = ["--residency", "50%", "--evict", "lru", "-c", "32", "--plot", str(plot)]
    for lambda_ in ("0.2", "0.8"):
        args += ["--compare", f"psr --lambda {lambda_}"]
    run_eval(capsys, hf[1], text, *args)
    drawing = ElementTree.fromstring(plot.read_text())
    titles = [element.text or "" for element in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 6  # three settings in two panels
    assert sum("psr, lambda 0.8" in title for title in titles) == 2
    assert sum(title.startswith("exact") for title in titles) == 2


def test_a_plot_needs_something_to_compare_and_a_place(
    hf: tuple[Any, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["eval", "-m", str(hf[1]), "-f", str(text), "-c", "32", "--residency", "50%", "--evict", "lru"]
    assert main([*args, "--plot", str(tmp_path / "p.svg")]) == 2
    assert "--compare" in capsys.readouterr().err
    unsized = ["eval", "-m", str(hf[1]), "-f", str(text), "-c", "32", "--compare", "psr"]
    assert main([*unsized, "--plot", str(tmp_path / "p.svg")]) == 2
    assert "give --residency" in capsys.readouterr().err
    assert main([*args, "--compare", "psr", "--plot", str(tmp_path / "none" / "p.svg")]) == 2
    out, err = capsys.readouterr()
    assert out == ""  # found out before the work, not after it
    assert f"--plot {tmp_path}/none/p.svg: the folder {tmp_path}/none does not exist" in err


def test_the_front_is_what_nothing_beats_in_both() -> None:
    assert front([(3.0, 0.0), (1.0, 2.0), (2.0, 3.0), (2.0, 1.0), (4.0, 0.0), (2.0, 1.0)]) == [1, 3, 0]


def test_the_first_setting_may_be_steered_in_every_way_that_a_compared_one_may(
    hf: tuple[Any, Path], text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = hf
    flags = ["--top-j", "0", "--inserts", "2", "--steer", "bonus=0.5,refresh=yes"]
    done = run_eval(capsys, path, text, "-c", "64", *PSR, *flags, "--compare", f"psr --lambda .4 {' '.join(flags)}")
    assert done["compared"][0]["steer"] == done["steer"]
    assert done["compared"][0]["perplexity"] == done["perplexity"]
    assert done["compared"][0]["demand_misses"] == done["demand_misses"]
