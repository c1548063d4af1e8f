"""python -m attune.evolve_module, and the judge of KernelBench's pairs. Most tests have a judge
that answers at once; those of the whole program are few, and small."""

import ast
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import attune
import pytest
import torch
from attune import (
    _judge,
    _judge_child,
    _module_reading,
    _module_source,
    _packing,
    evaluate,
    evolve_module,
)

MODULE = evaluate.BASELINE
SIZES = {"batch": 2, "seq": 16, "n_embd": 32, "n_head": 4, "max_seqlen": 64}
HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"

SEPARATE = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.values = nn.Linear(n_embd, n_embd)
        self.queries = nn.Linear(n_embd, n_embd, bias=False)
        self.keys = nn.Linear(n_embd, n_embd)
        self.out = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
            for t in (self.queries(x), self.keys(x), self.values(x))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
"""
)

INTERLEAVED = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self, n_embd, n_head, max_seqlen=1024):
        super().__init__()
        self.n_head = n_head
        self.kvq = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)
        lower = torch.ones(max_seqlen, max_seqlen).tril()
        self.register_buffer("bias", lower.view(1, 1, max_seqlen, max_seqlen))

    def forward(self, x):
        parts = self.kvq(x).unflatten(-1, (self.n_head, 3, -1)).unbind(3)
        k, v, q = (t.transpose(1, 2) for t in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))
"""
)

PROBLEM = (
    MODULE.read_text()
    + """

def get_inputs():
    return [torch.randn(2, 16, 32)]


def get_init_inputs():
    return [32, 4, 0.0, 0.0, 64]
"""
)


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.fixture(autouse=True)
def on_one_processor(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def module_of(tmp_path, text, name="m.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def facts_of(path):
    """Without a process."""
    module = _judge_child.import_module(path)
    return {**_module_reading.read(module, module.Model), "device": "cpu"}


# --- what a module computes ---


def test_modules_are_understood_by_what_they_compute(tmp_path):
    plain = facts_of(MODULE)
    assert plain["causal"] and plain["qkv"] == ["c_attn"] and plain["result"] == "c_proj"
    assert plain["attn_pdrop"] and plain["resid_pdrop"] and not plain["buffers"]
    separate = facts_of(module_of(tmp_path, SEPARATE, "separate.py"))
    assert separate["qkv"] == ["queries", "keys", "values"] and not separate["causal"]
    assert separate["storage"] == "separate" and separate["result"] == "out"
    assert not plain["own_weights"] and not separate["own_weights"]
    interleaved = facts_of(module_of(tmp_path, INTERLEAVED, "interleaved.py"))
    assert interleaved["interleaved"] and interleaved["order"] == ["k", "v", "q"]
    shape = [1, 1, "max_seqlen", "max_seqlen"]
    assert interleaved["buffers"] == [["bias", shape, "torch.float32"]]


@pytest.mark.parametrize(
    "old,new,words",
    [
        ("F.scaled_dot_product_attention(q, k, v)", "(q * k * v)", "computes something else"),
        ("n_head):", "n_head, extra):", "its Model takes 'extra'"),
        ("n_head):", "*, n_head):", "its Model takes 'n_head' by keyword only"),
        ("n_head):", "n_head=F.gelu):", "the default of 'n_head' is no number"),
        ("self.out = ", "self.scale = nn.Parameter(torch.ones(1))\n        self.out = ", "scale"),
        ("nn.Linear(n_embd, n_embd)\n\n", "nn.Linear(n_embd, 2 * n_embd)\n\n", "layers at n_embd"),
        ("return self.out", "return x, self.out", "one tensor of its input's shape"),
    ],
)
def test_other_modules_are_refused_with_a_reason(tmp_path, old, new, words):
    assert old in SEPARATE
    with pytest.raises(_module_reading.NotUnderstood, match=words):
        facts_of(module_of(tmp_path, SEPARATE.replace(old, new)))


def test_weights_that_a_module_draws_itself_are_noticed(tmp_path):
    end = "nn.Linear(n_embd, n_embd)\n\n"
    text = SEPARATE.replace(end, end[:-1] + "        nn.init.zeros_(self.out.bias)\n\n")
    path = module_of(tmp_path, text)
    facts = facts_of(path)
    assert facts["own_weights"]
    source = _module_source.source(_module_source.first(facts), facts, path)
    assert "load a state dict" in source


# --- candidates ---


def every_genes(facts):
    """One of each operator, and of each pair of them."""
    operators, _ = _module_source.available(facts)
    first = _module_source.first(facts)
    found = {}
    for one, other in itertools.product(operators, operators):
        genes = _module_source.canonical({**first, **one.genes, **other.genes}, facts)
        found[_module_source.title(genes, facts)] = genes
    return found


@pytest.mark.parametrize(
    "text", [MODULE.read_text(), SEPARATE, SEPARATE.replace(", bias=False", ""), INTERLEAVED]
)
def test_every_candidate_is_right_and_has_the_same_state(tmp_path, text):
    path = module_of(tmp_path, text)
    facts = facts_of(path)
    sizes = {k: SIZES[k] for k in ("n_embd", "n_head", "max_seqlen")}
    right = _judge_child.load_model(path, sizes, "cpu")
    x = torch.randn(2, 16, 32)
    with torch.no_grad():
        expected = right(x)
    found = every_genes(facts)
    assert len(found) > 20
    for n, (title, genes) in enumerate(found.items()):
        source = _module_source.source(genes, facts, path)
        ast.parse(source)
        assert max(map(len, source.splitlines())) <= 110 and "$" not in source
        if genes["compile"]:
            continue  # torch.compile takes seconds
        candidate = module_of(tmp_path, source, f"candidate_{n}.py")
        model = _judge_child.load_model(candidate, sizes, "cpu")
        own, theirs = model.state_dict(), right.state_dict()
        assert list(own) == list(theirs) and all(own[k].equal(theirs[k]) for k in own), title
        model = _judge_child.load_model(candidate, sizes, "cpu", seed=1)
        model.load_state_dict(theirs)
        with torch.no_grad():
            assert (model(x) - expected).abs().max() < 1e-5, title


def test_operators_are_of_three_levels_and_those_left_out_have_a_reason():
    facts = {**facts_of(MODULE), "device": "cpu"}
    operators, skipped = _module_source.available(facts)
    assert {one.level for one in operators} == set(_module_source.LEVELS)
    assert skipped["sdpa_cudnn"] == "only for cuda" and "split_float32" in skipped
    on_a_gpu = {one.name for one in _module_source.available({**facts, "device": "cuda"})[0]}
    assert {"sdpa_cudnn", "split_float32", "torch_linear"} <= on_a_gpu


def test_the_template_is_beside_the_code():
    assert _module_source.TEMPLATE.parent.parent == Path(evolve_module.__file__).parent
    assert _module_source.TEMPLATE.is_file()


# --- the search, with a judge that answers at once ---


def microseconds(name):
    """attune is the fastest, separate projections with it more so; written_out is wrong."""
    base = {"sdpa": 100, "attune": 60, "query_blocks": 150}
    attention = next((us for word, us in base.items() if word in name), 120)
    return attention * (0.8 if "separate_qkv" in name else 1)


class Judge:
    def __init__(self, monkeypatch):
        self.calls = []
        self.stop_at = None  # the call at which Ctrl-C comes
        monkeypatch.setattr(evaluate, "judged", self.judged)

    def judged(self, options):
        name = Path(options.path).stem.partition("_")[2]
        self.calls.append(name)
        if self.stop_at == len(self.calls):
            raise KeyboardInterrupt
        verdict = {"correct": "written_out" not in name, "seed": options.seed, "score": 0.0}
        if not verdict["correct"]:
            return {**verdict, "reason": "wrong result"}, None
        paths = [options.baseline, options.path, *options.beside]
        times = [200 if p == str(MODULE) else microseconds(Path(p).stem) for p in paths]
        times[1] = microseconds(name) if name else times[1]
        samples = [[t * 1e-6 * (1 + 0.001 * n) for n in range(options.rounds)] for t in times]
        verdict.update(max_diff=1e-7, float64_diff=1e-7, baseline_float64_diff=1e-7)
        speedup = times[0] / times[1]
        verdict.update(baseline_ms=0.2, optimised_ms=times[1] / 1e3, speedup=speedup)
        return {**verdict, "interval": [speedup, speedup]}, samples


@pytest.fixture
def judge(monkeypatch):
    facts = facts_of(MODULE)
    monkeypatch.setattr(evolve_module, "read", lambda path, device: dict(facts))
    return Judge(monkeypatch)


def evolved(output, **options):
    said = []
    options = {"iterations": 25, **SIZES, **options}
    return attune.evolve(module=MODULE, output=output, say=said.append, **options), said


def test_the_fastest_is_found_confirmed_and_written_down(judge, tmp_path):
    result, said = evolved(tmp_path / "out")
    assert result["faster"] and result["state"] == "confirmed"
    assert "separate_qkv" in result["name"] and "attune" in result["name"]
    assert result["speedup"] == pytest.approx(200 / 48) and len(result["repetitions"]) == 5
    assert result["fitness"] == pytest.approx(100 / 48)
    assert result["spread"] == pytest.approx([200 / 48] * 2)
    best = (tmp_path / "out" / "best_module.py").read_text()
    assert "attune." in best and "class Model(nn.Module)" in best
    evidence = json.loads((tmp_path / "out" / "evidence.json").read_text())
    every = evidence["all_candidates"]
    assert len(every) == result["candidates"] == 26 and every[0]["name"] == "sdpa"
    assert {one["level"] for one in every[1:]} >= set(_module_source.LEVELS)
    assert max(one["generation"] for one in every) > 2
    wrong = [one for one in every if not one["correct"]]
    assert wrong and all(one["fitness"] == 0 and one["reason"] for one in wrong)
    assert len(wrong) == result["refused"]
    assert evidence["final"]["holds"] and evidence["environment"]["torch"] == torch.__version__
    assert {"commit", "python", "system", "cuda"} <= set(evidence["environment"])
    assert evidence["environment"]["commit"] is not None, "the tool says it"
    assert len({one["name"] for one in every}) == len(every)
    assert "wrong result" in (tmp_path / "out" / "report.txt").read_text()
    assert any("5 repetitions between" in line for line in said)


def test_a_seed_says_what_is_tried(judge, tmp_path):
    def tried(n, **options):
        evolved(tmp_path / str(n), iterations=6, **options)
        lines = (tmp_path / str(n) / "history.jsonl").read_text().splitlines()
        return [json.loads(line).get("name") for line in lines]

    assert tried(0) == tried(1) != tried(2, seed=5)


def test_what_is_not_faster_is_not_handed_back(judge, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "microseconds", lambda name: 250)
    result, said = evolved(tmp_path, iterations=3)
    assert not result["faster"] and result["state"] == "none" and result["name"] == "as_written"
    assert (tmp_path / "best_module.py").read_text() == MODULE.read_text()
    assert any("no faster module is confirmed" in line for line in said)


def test_a_winner_that_does_not_hold_gives_way(judge, tmp_path, monkeypatch):
    judged = judge.judged

    def later_wrong(options):
        verdict, samples = judged(options)
        if judge.calls.count(judge.calls[-1]) > 1 and "separate_qkv" in judge.calls[-1]:
            return {**verdict, "correct": False, "reason": "wrong later"}, None
        return verdict, samples

    monkeypatch.setattr(evaluate, "judged", later_wrong)
    result, said = evolved(tmp_path)
    assert result["faster"] and "separate_qkv" not in result["name"]
    assert any("does not hold: wrong later" in line for line in said)


def test_ctrl_c_reports_the_best_so_far_and_resume_goes_on(judge, tmp_path, monkeypatch):
    judge.stop_at = 12
    with pytest.raises(KeyboardInterrupt) as stop:
        evolved(tmp_path)
    result = stop.value.result
    assert result["state"] == "stopped" and not result["faster"] and result["candidates"] == 11
    assert result["name"] != "as_written" and result["speedup"] > 1.5
    report = (tmp_path / "report.txt").read_text()
    assert "best so far: " + result["name"] in report and "not confirmed" in report
    judge.stop_at = None
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"event": "candi')  # a kill in the middle of a line
    with pytest.raises(evolve_module.Refused, match="has a run already"):
        evolved(tmp_path)
    before = len(judge.calls)
    result, said = evolved(tmp_path, resume=True)
    assert result["faster"] and "resumed: 11 candidates are known" in said
    assert len(judge.calls) - before == 26 - 11 + evolve_module.REPETITIONS
    other, _ = evolved(tmp_path / "whole")
    assert [other[k] for k in ("name", "speedup")] == [result[k] for k in ("name", "speedup")]
    with pytest.raises(evolve_module.Refused, match="cannot go on: seed, batch changed"):
        evolved(tmp_path, resume=True, seed=3, batch=3)
    with monkeypatch.context() as other:
        other.setattr(torch, "__version__", "1.0")
        with pytest.raises(evolve_module.Refused, match="cannot go on: torch changed"):
            evolved(tmp_path, resume=True)


def test_ctrl_c_on_the_command_line(judge, tmp_path, capsys):
    judge.stop_at = 3
    options = [f"--{k.replace('_', '-')}={v}" for k, v in SIZES.items()]
    command = [str(MODULE), "--output", str(tmp_path), "--iterations", "9", "--json", *options]
    assert evolve_module.main(command) == 130
    said = capsys.readouterr()
    assert json.loads(said.out)["state"] == "stopped" and "best so far: sdpa" in said.err


def test_two_processes_do_not_share_a_folder(judge, tmp_path):
    history = evolve_module.History(tmp_path / "history.jsonl")
    history.lines()
    with pytest.raises(evolve_module.Refused, match="another process works in it"):
        evolved(tmp_path)
    history.close()


SCRIPT = """
import sys
path = sys.argv[sys.argv.index("--path") + 1]
text = open(path).read()
if "query_blocks" in path:
    sys.exit("no blocks here")
print("Score: 3.5" if "written_out" not in path and "F.linear" in text else "Score: 1.0")
"""


def test_an_evaluation_of_your_own_decides(judge, tmp_path):
    script = module_of(tmp_path, SCRIPT, "evaluate.py")
    result, said = evolved(tmp_path / "out", evaluate=script, iterations=12)
    assert result["faster"] and "separate_qkv" in result["name"]
    assert result["fitness"] == 3.5 and result["script_scores"] == [3.5] * 3
    assert f"scores by {script}: 3.5, 3.5, 3.5; the module 1" in said[-1]
    every = json.loads((tmp_path / "out" / "evidence.json").read_text())["all_candidates"]
    blocks = [one for one in every if one["name"].startswith("query_blocks")]
    assert all(one["fitness"] == 0 and "no blocks here" in one["said"] for one in blocks)
    assert {one.get("script_score") for one in every} <= {0.0, 1.0, 3.5, None}


# --- wrong input, before anything is spent ---


@pytest.mark.parametrize(
    "options,words",
    [
        ({"budget": "soon"}, "budget 'soon' is no time: 90s, 3m and 1h are"),
        ({"budget": "0s"}, "is no time"),
        ({"top": 0}, "top is 0; at least 1"),
        ({"device": "cuda"}, "torch finds no GPU here"),
        ({"evaluate": "none.py"}, "evaluate none.py is not a file"),
        ({"n_head": 5}, "n_embd is 32, which 5 heads cannot share"),
        ({"seq": 99}, "seq is 99, more than max_seqlen 64"),
        ({"tolerance": 0.0}, "tolerance is 0.0; it must be more than 0"),
        ({"output": "/dev/null/x"}, "output /dev/null/x cannot be used"),
    ],
)
def test_bad_options_are_named(judge, tmp_path, options, words, capsys):
    options = {"module": MODULE, "output": tmp_path / "out", **SIZES, **options}
    flags = [str(options.pop("module"))]
    for name, value in options.items():
        flags += [f"--{name.replace('_', '-')}", str(value)]
    assert evolve_module.main(flags) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not said.out
    assert not judge.calls and not (tmp_path / "out" / "history.jsonl").exists()


def test_a_script_that_does_not_work_is_named(judge, tmp_path):
    script = module_of(tmp_path, "print('fine')", "evaluate.py")
    with pytest.raises(evolve_module.Refused, match="prints no 'Score: NUMBER'"):
        evolved(tmp_path / "out", evaluate=script)
    assert not judge.calls


def test_the_module_is_not_written_over(judge, tmp_path):
    path = module_of(tmp_path, MODULE.read_text(), "best_module.py")
    with pytest.raises(evolve_module.Refused, match="would be written over"):
        attune.evolve(module=path, output=tmp_path)
    with pytest.raises(evolve_module.Refused, match="the name of a script, or a command"):
        attune.evolve(module=MODULE, output=tmp_path, evaluate=len)
    assert not judge.calls and not (tmp_path / "history.jsonl").exists()


def test_keywords_of_kernels_are_refused(tmp_path):
    with pytest.raises(TypeError, match="shape, dtype and causal are for kernels"):
        attune.evolve(module=MODULE, causal=True)
    with pytest.raises(TypeError, match="takes no batches"):
        attune.evolve(module=MODULE, batches=3)


@pytest.mark.parametrize(
    "text,words",
    [
        ("def f(:", "line 1: invalid syntax"),
        full("x = 1", "defines no Model"),
        full("raise OSError('no')", "OSError at line 1"),
        (HEAD + "class Model(nn.Linear): pass\n", "its Model takes 'in_features'"),
    ],
)
def test_a_file_that_cannot_be_evolved(tmp_path, text, words, capsys):
    path = module_of(tmp_path, text)
    assert evolve_module.main([str(path), "--output", str(tmp_path / "out"), "--json"]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not (tmp_path / "out").exists()
    assert words in json.loads(said.out)["error"]


def test_a_missing_file_is_named(tmp_path, capsys):
    assert evolve_module.main([str(tmp_path / "none.py"), "--output", str(tmp_path / "out")]) == 2
    assert "none.py is not a Python file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- the whole program ---

SMALL = ["--batch=2", "--seq=16", "--n-embd=32", "--n-head=4", "--max-seqlen=64", "--rounds=3"]


def started(folder, *options):
    command = [sys.executable, "-m", "attune.evolve_module", str(MODULE), *SMALL]
    environment = {**os.environ, "PYTHONPATH": str(Path(attune.__file__).parents[1])}
    return subprocess.Popen(
        [*command, "--output", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "TMPDIR": str(folder.parent)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_one_candidate_by_the_real_judge(tmp_path, monkeypatch):
    monkeypatch.setattr(evolve_module, "REPETITIONS", 2)
    monkeypatch.setattr(_judge, "WARM_UP", 0.05)
    result, said = evolved(tmp_path, iterations=1, rounds=2)
    every = json.loads((tmp_path / "evidence.json").read_text())["all_candidates"]
    assert result["candidates"] == 2 and result["refused"] == 0, said
    assert all(one["correct"] and one["max_diff"] < 1e-5 for one in every)
    assert set(every[1]["samples_s"]) >= {"baseline", "candidate", "sdpa"}


@pytest.mark.full
def test_the_program(tmp_path):
    run = started(tmp_path / "out", "--iterations", "1", "--json")
    out, said = run.communicate()
    assert run.returncode in (0, 1), said  # nothing is known of the speed of such small calls
    result = json.loads(out)
    every = json.loads((tmp_path / "out" / "evidence.json").read_text())["all_candidates"]
    assert result["candidates"] == 2 and result["refused"] == 0
    assert all(one["correct"] and one["max_diff"] < 1e-5 for one in every)
    assert all(len(v) == 3 for one in every for v in one["samples_s"].values())
    assert {"baseline", "candidate", "sdpa"} <= set(every[1]["samples_s"])


@pytest.mark.full
def test_after_a_kill(tmp_path):
    folder = tmp_path / "out"
    run = started(folder, "--iterations", "4")
    until = time.monotonic() + 240
    history = folder / "history.jsonl"

    def lines():
        return len(history.read_text().splitlines()) if history.exists() else 0

    while lines() < 3 and time.monotonic() < until:
        time.sleep(0.05)
    run.kill()
    run.communicate()
    assert lines() >= 3
    before = history.read_text().splitlines()[:3]
    assert (folder / "best_module.py").is_file()
    run = started(folder, "--iterations", "4", "--resume", "--json")
    out, said = run.communicate()
    assert run.returncode in (0, 1) and re.search(r"resumed: [2-9] candidates", said), said
    assert json.loads(out)["candidates"] == 5 and history.read_text().splitlines()[:3] == before


@pytest.mark.full
def test_every_operator_by_the_real_judge(tmp_path):
    """Without torch.compile, which has its own test of the judge."""
    facts = facts_of(MODULE)
    first = _module_source.first(facts)
    for operator in _module_source.available(facts)[0]:
        genes = _module_source.canonical({**first, **operator.genes}, facts)
        if genes["compile"] and operator.name != "compile":
            continue
        path = module_of(tmp_path, _module_source.source(genes, facts, MODULE))
        options = [*SMALL, "--path", str(path), "--json", str(tmp_path / "verdict.json")]
        assert evaluate.main(options) == 0, (tmp_path / "verdict.json").read_text()


# --- KernelBench's pairs ---

NEW = PROBLEM.replace("class Model(", "class ModelNew(")


def paired(tmp_path, capsys, problem, new, *options):
    """(exit code, result, stderr)"""
    files = module_of(tmp_path, problem, "problem.py"), module_of(tmp_path, new, "new.py")
    command = ["--reference", str(files[0]), "--path", str(files[1]), "--rounds", "3", "--json"]
    code = evaluate.main([*command, *options])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


GENERAL = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self, sizes, scale):
        super().__init__()
        assert isinstance(sizes, tuple) and scale.shape == (3,)
        self.linear = nn.Linear(*sizes)
        self.scale, self.drop = scale, nn.Dropout(0.5)

    def forward(self, x, index, flag):
        y = self.drop(self.linear(x.float()) * self.scale)
        more = {"wave": torch.complex(y, y), "sign": y > 0, "inf": y / torch.zeros(3), "n": 3}
        return {"y": y.bfloat16(), "rows": [y[index], index + 1], **more}


def get_inputs():
    return [torch.randn(4, 5).half(), torch.randint(0, 4, (6,)), True]


def get_init_inputs():
    return [(5, 3), torch.arange(1.0, 4.0)]
"""
)


def test_a_pair_with_any_tensors(tmp_path, capsys):
    new = GENERAL.replace("class Model(", "class ModelNew(").replace(
        "self.linear(x.float())", "(x.float() @ self.linear.weight.T + self.linear.bias)"
    )
    code, result, said = paired(tmp_path, capsys, GENERAL, new)
    assert code == 0 and result["correct"], (result, said)
    assert result["tolerance"] == 1e-2 and result["speedup"] > 0 and result["max_diff"] < 1e-2
    assert result["reference"].endswith("problem.py")


@pytest.mark.parametrize(
    "old,new,words",
    [
        ("x):\n", "x):\n        return torch.zeros_like(x)\n", "off by .* from the reference"),
        full("length, width)\n", "length, width).half().float()\n", "from the reference"),
        full("return self.resid", "return x, self.resid", "wrong shape or type"),
        full("return self.resid", "x.zero_()\n        return self.resid", "read-only memory"),
        full("batch, length, width = x.shape", "return x * torch.nan", "NaN, infinite or not"),
    ],
)
def test_a_wrong_solution_is_refused(tmp_path, capsys, old, new, words):
    assert old in NEW
    code, result, _ = paired(tmp_path, capsys, PROBLEM, NEW.replace(old, new))
    assert code == 1 and not result["correct"] and result["score"] == 0 and "speedup" not in result
    assert re.search(words, result["reason"]), result


TRICKS = {
    "patches": """
import time
torch.allclose = torch.equal = torch.Tensor.equal = lambda *_, **__: True
torch.Tensor.abs = torch.zeros_like
time.perf_counter = time.monotonic = lambda: 0.0
ModelNew.forward = lambda self, x: torch.zeros(2, 16, 32)
""",
    "claims": """
from attune import _packing
_packing.pack = lambda value, memory: len(memory)
""",
    "header": """
from attune import _packing
plain = _packing.pack
def pack(value, memory):
    size = plain(value, memory)
    memory[:8] = 255
    return size
_packing.pack = pack
""",
    "looks": """
import glob, os
def forward(self, x):
    parent = os.getppid()
    files = glob.glob(f"/proc/{parent}/fd/*") + glob.glob(f"/proc/{parent}/map_files/*")
    for path in [f"/proc/{parent}/mem", *files]:
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError:
            continue
        return x
    raise ZeroDivisionError("it cannot look")
ModelNew.forward = forward
""",
}


@pytest.mark.parametrize(
    "trick,words",
    [
        ("patches", "from the reference"),
        ("claims", "wrong shape or type"),
        full("header", "wrong shape or type"),
        full("looks", "raised an exception"),
    ],
)
def test_tricks_are_refused(tmp_path, capsys, trick, words):
    code, result, said = paired(tmp_path, capsys, PROBLEM, NEW + TRICKS[trick])
    assert code == 1 and re.search(words, result["reason"]), (result, said)
    assert trick != "looks" or "ZeroDivisionError" in said


@pytest.mark.full
def test_a_remembered_result_is_refused(tmp_path, capsys):
    new = NEW + "\nplain, known = ModelNew.forward, []\n"
    new += "def forward(self, x):\n    known.append(plain(self, x))\n    return known[0]\n"
    code, result, _ = paired(tmp_path, capsys, PROBLEM, new + "ModelNew.forward = forward\n")
    assert code == 1 and "from the reference" in result["reason"]


@pytest.mark.parametrize(
    "problem,new,words",
    [
        (PROBLEM, MODULE.read_text(), "new.py .*defines no ModelNew"),
        full(MODULE.read_text(), NEW, "problem.py .*defines no get_inputs"),
        full(PROBLEM.replace("randn(", "ones("), NEW, "gives the same numbers each time"),
        full(PROBLEM.replace("32, 4,", "32, 5,"), NEW, "cannot be called|cannot be made"),
    ],
)
def test_a_pair_that_cannot_be_tried(tmp_path, capsys, problem, new, words):
    code, result, said = paired(tmp_path, capsys, problem, new)
    assert code == 2 and re.search(words, result["error"]) and said.count("\n") == 1


@pytest.mark.full
def test_a_problem_without_float64_and_one_that_proves_little(tmp_path, capsys):
    problem = PROBLEM.replace("x):\n", "x):\n        assert x.dtype == torch.float32\n")
    code, result, _ = paired(tmp_path, capsys, problem, NEW)
    assert code == 0 and "cannot be run" in result["no_float64"]
    problem, new = (
        t.replace("return self.resid", "return 1e-9 * self.resid") for t in (PROBLEM, NEW)
    )
    code, result, _ = paired(tmp_path, capsys, problem, new)
    assert code == 2 and "hardly depends on its inputs" in result["error"]
    code, result, _ = paired(tmp_path, capsys, problem, new, "--tolerance", "1e-13")
    assert code == 0 and result["tolerance"] == 1e-13


@pytest.mark.parametrize("flag", ["--seq=3", "--baseline=b.py"])
def test_options_that_do_not_go_with_a_pair(flag, capsys):
    with pytest.raises(SystemExit) as stop:
        evaluate.main(["--reference", "p.py", "--path", "n.py", flag])
    assert stop.value.code == 2 and "does not go with --reference" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        evaluate.main(["--reference", "p.py"])
    assert "--path is needed" in capsys.readouterr().err


@pytest.mark.full
def test_a_kernelbench_problem_is_evolved_and_judged(tmp_path, capsys):
    path = module_of(tmp_path, PROBLEM, "problem.py")
    result = attune.evolve(module=path, output=tmp_path / "out", iterations=1, rounds=3)
    assert result["candidates"] == 2 and result["refused"] == 0
    new = (tmp_path / "out" / "candidates" / "000_sdpa.py").read_text()
    assert "class ModelNew(nn.Module)" in new
    code, verdict, _ = paired(tmp_path, capsys, PROBLEM, new)
    assert code == 0 and verdict["correct"]


# --- blocks ---


def test_a_block_is_read_as_it_was_written():
    memory = torch.zeros(4096, dtype=torch.uint8)
    value = {"a": (torch.arange(6).view(2, 3).t(), [None, True, 2.5, "x"]), "b": torch.ones(0, 2)}
    size = _packing.pack(value, memory)
    got = _packing.unpack(memory[:size])
    assert got["a"][0].equal(value["a"][0]) and got["a"][1] == value["a"][1]
    assert isinstance(got["a"], tuple) and got["b"].shape == (0, 2)
    assert len(_packing.tensors(got)) == 2
    with pytest.raises(MemoryError):
        _packing.pack(torch.ones(9999), memory)
    with pytest.raises(TypeError, match="a object cannot be passed"):
        _packing.pack([object()], memory)
