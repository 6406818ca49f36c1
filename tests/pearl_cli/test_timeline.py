"""`--timeline`: a loadable trace in which kernels lie inside tokens and reads carry their priority;

nothing stays patched.
"""

import json

from pearl_cli.__main__ import main
from pearl_cli.options import RunOptions
from pearl_cli.session import open_session
from pearl_cli.sizes import Size
from pearl_cli.terminal import Terminal
from pearl_cli.timeline import Timeline, recording


def test_trace_of_a_completion(tiny_path, tmp_path, capsys):
    out = tmp_path / "trace.json"
    args = ["-p", "abcdef", "-n", "5", "--temp", "0", "--ignore-eos", "--budget", "30%", "--no-profile"]
    assert main(["complete", "-m", str(tiny_path), *args]) == 0
    plain = capsys.readouterr().out
    assert main(["complete", "-m", str(tiny_path), *args, "--timeline", str(out)]) == 0
    assert capsys.readouterr().out == plain
    events = json.loads(out.read_text())["traceEvents"]
    by_kind = {
        kind: [e for e in events if e.get("cat") == kind] for kind in ("token", "kernel", "gate", "read", "demand")
    }
    assert len(by_kind["token"]) == 4, "the last token needs no forward call"
    assert len(by_kind["gate"]) == 2 * 5, "two layers: one prompt chunk and four tokens"
    first = by_kind["token"][0]
    inside = [
        k for k in by_kind["kernel"] if first["ts"] <= k["ts"] and k["ts"] + k["dur"] <= first["ts"] + first["dur"]
    ]
    assert inside
    assert {e["args"]["priority"] for e in by_kind["read"]} == {"demand"}
    assert all(e["args"]["bytes"] > 0 and e["tid"] != first["tid"] for e in by_kind["read"])
    assert by_kind["demand"]


def test_recording_puts_everything_back(tiny_path):
    with open_session(
        RunOptions(model=tiny_path, budget=Size(percent=30)), Terminal("off"), use_profile=False
    ) as session:
        controller = session.opened.controller
        before = dict(vars(controller)), dict(vars(controller.queue)), dict(vars(session.engine))
        with recording(Timeline(), session.opened):
            assert vars(controller.queue) != before[1]
        after = dict(vars(controller)), dict(vars(controller.queue)), dict(vars(session.engine))
        assert [set(a) for a in after] == [set(b) for b in before]


def test_bench_writes_the_trace_of_eight_steps(tiny_path, tmp_path, capsys):
    out = tmp_path / "bench.json"
    args = ["-p", "0", "-n", "4", "-r", "1", "--budget", "40%", "--timeline", str(out)]
    assert main(["bench", "-m", str(tiny_path), *args]) == 0
    assert str(out) in capsys.readouterr().err
    events = json.loads(out.read_text())["traceEvents"]
    assert sum(event.get("cat") == "token" for event in events) == 8


def test_forecasts_and_waits_are_in_it(tiny_path, tmp_path):
    out = tmp_path / "ahead.json"
    args = ["-p", "0", "-n", "4", "-r", "1", "--budget", "60%", "--evict", "lru", "--predictor", "ema"]
    args += ["--throttle", "10MiB"]  # so that somebody waits
    assert main(["bench", "-m", str(tiny_path), *args, "--timeline", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert {"prefetch", "wait"} <= {event.get("cat") for event in events}
