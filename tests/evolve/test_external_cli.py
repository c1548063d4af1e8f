"""attune evolve with an evaluator of the user's own: the score, the run's files, resume, replay."""

import json
import os
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()

PROGRAM = """\
# A program in no language of ours.
X = 1  # EVOLVE-PARAM X {1,2,3,4}
Y = a  # EVOLVE-PARAM Y {a,b,c} hardware: a letter
# EVOLVE-BLOCK-START body
for i in range(X):
    print(i)
# EVOLVE-BLOCK-END
"""
# The best is X = 3, Y = b, with 6.
EVALUATOR = """\
import pathlib, re

def evaluate(path):
    text = open(path).read()
    x, y = re.search(r"X = (\\d).*\\nY = (\\w)", text).groups()
    with open(pathlib.Path(__file__).parent / "calls", "a") as calls:
        calls.write(f"{x}{y}\\n")
    if x == "4":
        raise RuntimeError("four is too many")
    return {"combined_score": {"1": 1, "2": 2, "3": 5}[x] + (y == "b"), "letters": 1.0}
"""


SAYS_SECRETS = """\
    import os, sys
    global SAID
    SAID = f"says {os.environ['CANARY_TOKEN']} and {'sk-' + 'canary-0123456789abcdef'} here"
    print(SAID)
    print(SAID, file=sys.stderr)
    if x == "4":
        raise RuntimeError(SAID)
"""


@pytest.fixture
def attune(tmp_path):
    def run(*args, timeout=100, **kwargs):
        env = os.environ | {"ATTUNE_CACHE_DIR": str(tmp_path / "cache")}
        env.pop("VIRTUAL_ENV", None)
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        return subprocess.run(
            [ATTUNE, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
            env=env | kwargs,
        )

    (tmp_path / "prog.txt").write_text(PROGRAM)
    (tmp_path / "evaluator.py").write_text(EVALUATOR)
    run.folder = tmp_path
    run.evolve = lambda *args, **kwargs: run(
        *("evolve", "prog.txt", "--evaluator", "evaluator.py", "--run", "run"), *args, **kwargs
    )
    return run


def records(folder):
    with closing(sqlite3.connect(folder / "run.db")) as db:
        return [json.loads(row[0]) for row in db.execute("SELECT json FROM record ORDER BY n")]


def test_the_best_of_a_small_space_is_found_and_told_whose_numbers_are_whose(attune):
    done = attune.evolve("-i", "14", "--json", "result.json", "--checkpoint-interval", "5")
    assert done.returncode == 0, done.stderr
    assert "claimed by the user's evaluator" in done.stdout
    assert "prog[X=3; Y=b]" in done.stdout
    assert "its combined_score is 1, after" in done.stderr
    result = json.loads((attune.folder / "result.json").read_text())
    assert result["best"] == "prog[X=3; Y=b]"
    best = next(row for row in result["rows"] if "evolved" in row["roles"])
    assert best["claimed"]["score"] == 6
    assert best["over_start"] == pytest.approx([6, 6, 6])
    run = attune.folder / "run"
    assert "X = 3" in (run / "best/best_program.txt").read_text()
    report = (run / "report.html").read_text()
    assert "What the evaluator claimed" in report and "library&#39;s own choice" not in report
    evidence = json.loads((run / "evidence.json").read_text())
    environment = evidence["meta"]["environment"]
    assert environment["python"] == platform.python_version() and environment["compiler"]
    assert environment["commit"] == json.loads(attune("info", "--json").stdout)["commit"]
    assert environment["system"].split()[1] == platform.release()
    claims = evidence["candidates"][0]["evaluation"]["claims"]
    assert claims["by_the_evaluator"]["metrics"] == {"combined_score": 1, "letters": 1}
    assert claims["measured_by_us"]["seconds"][0] > 0
    failed = [r for r in evidence["candidates"] if "X=4" in r["candidate"]["id"]]
    assert all(r["evaluation"]["verdict"] == "crashed" for r in failed)
    assert all("four is too many" in r["evaluation"]["why"] for r in failed)
    assert attune("evolve", "--replay", "run").returncode == 0
    assert attune("report", "run").returncode == 0
    # One that never changes its mind is not asked more than needed.
    calls = (attune.folder / "calls").read_text().split()
    assert len(calls) <= 2 * len(evidence["candidates"]) + 12, calls


def test_the_run_is_laid_out_as_openevolve_lays_it_out(attune):
    assert attune.evolve("-i", "12", "--checkpoint-interval", "5").returncode == 0
    run = attune.folder / "run"
    folders = sorted((run / "checkpoints").iterdir())
    assert [f.name for f in folders] == ["checkpoint_10", "checkpoint_11", "checkpoint_5"]
    for folder in folders:
        meta = json.loads((folder / "metadata.json").read_text())
        programs = {
            p["id"]: p for p in (json.loads(f.read_text()) for f in folder.glob("programs/*.json"))
        }
        assert {name for island in meta["islands"] for name in island} == set(programs)
        assert set(meta["archive"]) <= set(programs)
        assert meta["best_program_id"] in programs
        assert {p["parent_id"] for p in programs.values()} <= {None, *programs}
        last = meta["last_iteration"]
        assert folder.name == f"checkpoint_{last}" and len(programs) == last + 1
        start = next(p for p in programs.values() if p["iteration_found"] == 0)
        assert start["code"] == PROGRAM and start["metrics"]["combined_score"] == 1
        assert start["generation"] == 0 and start["timestamp"] > 1.7e9
        info = json.loads((folder / "best_program_info.json").read_text())
        assert info["id"] == meta["best_program_id"] and info["current_iteration"] == last
        assert (folder / "best_program.txt").read_text() == programs[info["id"]]["code"]
    info = json.loads((run / "best/best_program_info.json").read_text())
    named = {"generation", "iteration", "timestamp", "parent_id", "metrics", "language", "saved_at"}
    assert named <= set(info)
    assert info["program_id"] in programs


@pytest.mark.full
def test_a_killed_run_goes_on_and_is_replayed(attune, tmp_path):
    (tmp_path / "evaluator.py").write_text(
        EVALUATOR.replace("return", "import time; time.sleep(0.1); return")
    )
    command = ["evolve", "prog.txt", "--evaluator", "evaluator.py", "--run", "run", "-i", "12"]
    process = subprocess.Popen(
        [ATTUNE, *command], cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(sqlite3.OperationalError):  # it is not there yet
            if (tmp_path / "run/run.db").exists() and len(records(tmp_path / "run")) >= 4:
                break
        time.sleep(0.05)
    process.kill()
    process.wait()
    process.stderr.close()
    before = records(tmp_path / "run")
    assert 4 <= len(before) < 12
    done = attune("evolve", "--resume", "run")
    assert done.returncode in (0, 1), done.stderr
    after = records(tmp_path / "run")
    assert len(after) == 12 and after[: len(before)] == before
    assert attune("evolve", "--replay", "run").returncode == 0

    # With another evaluator the scores would be others.
    (tmp_path / "evaluator.py").write_text(EVALUATOR + "\n# changed\n")
    refused = attune("evolve", "--resume", "run", "--budget", "20ev")
    assert refused.returncode == 2 and "has changed since the run" in refused.stderr
    assert attune("evolve", "--replay", "run").returncode == 0


@pytest.mark.parametrize(
    "program, evaluator, said",
    [
        ("x = 1\n", EVALUATOR, "nothing in it may change"),
        ("# EVOLVE-BLOCK-START\nx = 1\n", EVALUATOR, "line 1: EVOLVE-BLOCK-START without"),
        ("# EVOLVE-PARAM X {1,2}\n", EVALUATOR, "alone on its line"),
        (PROGRAM.split("X = 1")[0] + "# EVOLVE-BLOCK-START\nfor i in x:\n# EVOLVE-BLOCK-END\n",
         EVALUATOR, "its blocks have no tunables"),
        (PROGRAM, "def evaluate(path): raise KeyError('size')\n", "KeyError: 'size'"),
        (PROGRAM, "def evaluate(path): return {'combined_score': float('inf')}\n", "is inf"),
        (PROGRAM, "import not_there\ndef evaluate(path): pass\n", "No module named 'not_there'"),
        (PROGRAM, "evaluate = 3\n", "not callable"),
    ],
)  # fmt: skip
def test_what_cannot_begin_says_why_and_leaves_no_run(attune, program, evaluator, said):
    (attune.folder / "prog.txt").write_text(program)
    (attune.folder / "evaluator.py").write_text(evaluator)
    result = attune.evolve("-i", "5")
    assert result.returncode in (1, 2)
    assert said in result.stderr
    assert not (attune.folder / "run").exists()


@pytest.mark.parametrize(
    "args, said",
    [
        (["--eval-command", "true", "--metric", "x"], "--eval-command"),
        (["--shape", "1x1x8x8"], "--shape: it is for kernels that Attune judges"),
        (["--goal", "upwards"], "--goal"),
        (["--eval-timeout", "nan"], "--eval-timeout"),
        (["--python", "/nowhere/python"], "--python: there is no /nowhere/python"),
        (["-i", "5", "--budget", "5s"], "--iterations: there is a --budget already"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(attune, args, said):
    result = attune.evolve(*args)
    assert result.returncode == 2 and said in result.stderr
    assert not (attune.folder / "calls").exists()


def test_a_command_needs_a_place_for_the_program_and_a_metric(attune):
    command = ["evolve", "prog.txt", "--eval-command"]
    refused = attune(*command, "python evaluate.py", "--metric", "x")
    assert refused.returncode == 2 and "write {program} where" in refused.stderr
    refused = attune(*command, "cat {program}")
    assert refused.returncode == 2 and "--metric" in refused.stderr
    alone = attune("evolve", "prog.txt", "--metric", "x")
    assert alone.returncode == 2 and "--evaluator FILE" in alone.stderr


def test_a_command_is_minimised(attune):
    script = 'import sys, re\nx = re.search(r"X = (\\d)", open(sys.argv[1]).read())[1]\n'
    (attune.folder / "measure.py").write_text(script + 'print(f"Wall Time: {10 - int(x)} ms")\n')
    command = f"{sys.executable} measure.py {{program}}"
    result = attune(
        *("evolve", "prog.txt", "--eval-command", command, "--metric", "wall_time", "-o", "run"),
        *("--goal", "min", "-i", "13", "--json", "-"),
    )
    assert result.returncode == 0, result.stderr
    best = next(row for row in json.loads(result.stdout)["rows"] if "evolved" in row["roles"])
    assert best["claimed"]["score"] == 6 and "X=4" in best["id"]
    assert attune("evolve", "--replay", "run").returncode == 0


def files_with(folder, text):
    return [p for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


def test_what_an_evaluator_says_is_kept_without_secrets(attune):
    (attune.folder / "evaluator.py").write_text(
        EVALUATOR.replace("    if x ==", SAYS_SECRETS + "    if x ==").replace(
            'return {"combined', 'return {"artifacts": {"log": SAID, SAID[:90]: "x"}, "combined'
        )
    )
    (attune.folder / "answers").mkdir()
    options = ["-i", "12", "--propose", "manual:answers"]
    done = attune.evolve(*options, CANARY_TOKEN="canary/in the environment")
    assert done.returncode == 0, done.stderr
    run = attune.folder / "run"
    told = json.loads((run / "evidence.json").read_text())["candidates"]
    claims = told[0]["evaluation"]["claims"]["by_the_evaluator"]["artifacts"]
    for name in ("log", "stdout", "stderr"):
        assert "says [CANARY_TOKEN] and [redacted] here" in claims[name], claims
    failed = [r["evaluation"] for r in told if "X=4" in r["candidate"]["id"]]
    assert failed and all("says [CANARY_TOKEN] and" in e["why"] for e in failed)
    assert "[CANARY_TOKEN]" in (attune.folder / "answers/TASK.md").read_text()
    for secret in ("canary/in", "sk-canary"):
        assert secret not in done.stdout + done.stderr
        assert files_with(run, secret) + files_with(attune.folder / "answers", secret) == []


@pytest.mark.full
def test_negative_scores_are_compared_by_differences(attune):
    (attune.folder / "evaluator.py").write_text(
        EVALUATOR.replace('return {"combined_score": ', 'return {"combined_score": -9 + ')
    )
    result = attune.evolve("-i", "13", "--json", "-")
    assert result.returncode == 0, result.stderr
    best = next(row for row in json.loads(result.stdout)["rows"] if "evolved" in row["roles"])
    assert best["claimed"]["score"] == -3
    assert attune("evolve", "--replay", "run").returncode == 0


@pytest.mark.full
def test_a_noisy_evaluator_is_repeated(attune):
    (attune.folder / "evaluator.py").write_text(
        EVALUATOR.replace("import pathlib", "import random, pathlib")
        .replace('(y == "b")', "0")
        .replace("[x]", "[x] * random.lognormvariate(0, 0.02)")
    )
    result = attune.evolve("-i", "8", "--json", "-")
    assert result.returncode in (0, 1), result.stderr
    assert attune("evolve", "--replay", "run").returncode == 0
    accepted = [r for r in records(attune.folder / "run")[1:] if r["outcome"]["improved"]]
    for record in accepted:
        assert len(record["evaluation"]["shapes"][0]["candidate"]) >= 3
        assert re.search("X=[23]", record["candidate"]["id"]), "Y changes nothing"
    rows = json.loads(result.stdout)["rows"]
    assert all(len(row["claimed"]["scores"]) >= 5 for row in rows)


def test_blocks_of_another_program_are_exchanged(attune):
    (attune.folder / "other.txt").write_text(
        "# EVOLVE-BLOCK-START body\nif X:\n    print('other')  # FAST\n# EVOLVE-BLOCK-END\n"
    )
    (attune.folder / "evaluator.py").write_text(
        "def evaluate(path):\n    return {'combined_score': 1 + open(path).read().count('FAST')}\n"
    )
    result = attune.evolve("--with", "other.txt", "-i", "10", "--json", "-")
    assert result.returncode == 0, result.stderr
    best = (attune.folder / "run/best/best_program.txt").read_text()
    assert "    print('other')  # FAST\n# EVOLVE-BLOCK-END\n" in best
    steps = (attune.folder / "run/best/steps.diff").read_text()
    assert "+    print('other')  # FAST" in steps
    listed = attune("evolve", "prog.txt", "--evaluator", "evaluator.py", "--list-genes")
    assert "loop." not in listed.stdout and "X" in listed.stdout


def test_the_target_score_ends_the_run(attune):
    result = attune.evolve("--budget", "100ev", "-t", "2", "--json", "-")
    assert result.returncode == 0, result.stderr
    last = records(attune.folder / "run")[-1]
    assert (
        last["outcome"]["improved"]
        and last["evaluation"]["claims"]["by_the_evaluator"]["scores"][0] >= 2
    )


def test_ctrl_c_ends_the_evaluation_and_keeps_the_rest(attune, tmp_path):
    (tmp_path / "evaluator.py").write_text(
        EVALUATOR.replace(
            '    if x == "4"', '    if x != "1": import time; time.sleep(60)\n    if x == "4"'
        )
    )
    process = subprocess.Popen(
        [ATTUNE, "evolve", "prog.txt", "--evaluator", "evaluator.py", "--run", "run", "-i", "50"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    calls = tmp_path / "calls"
    while time.monotonic() < deadline:
        if calls.exists() and any(not line.startswith("1") for line in calls.read_text().split()):
            break
        time.sleep(0.05)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert process.returncode == 130 and "--resume run" in err
    assert records(tmp_path / "run")


# ---- config.yaml ----


def test_a_config_is_taken_and_what_it_has_in_vain_is_named(attune):
    (attune.folder / "config.yaml").write_text("""\
max_iterations: 4
checkpoint_interval: 2
random_seed: 7
log_level: INFO
max_iteration: 3
llm:
  models: [{name: one, weight: 0.5}]
  api_key: ${SOME_KEY}
  temprature: 0.5
database:
  num_islands: 2
  population_size: 50
evaluator:
  timeout: 33
  cascade_thresholds: [0.1]
parallel_evaluations: 4
novelty: {}
""")
    result = attune.evolve("-c", "config.yaml")
    assert result.returncode in (0, 1), result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("config.yaml")]
    assert len(lines) == 1
    for part in [
        "max_iteration (did you mean max_iterations?)",
        "llm.temprature (did you mean llm.temperature?)",
        "parallel_evaluations (did you mean evaluator.parallel_evaluations?)",
        "novelty",
        "not used here: log_level, database.population_size",
        "llm.models, llm.api_key",
    ]:
        assert part in lines[0]
    evidence = json.loads((attune.folder / "run/evidence.json").read_text())
    meta = evidence["meta"]
    assert (meta["seed"], meta["islands"], meta["checkpoint_interval"]) == (7, 2, 2)
    assert meta["external"]["seconds"] == 33
    assert meta["external"]["thresholds"] == [0.1, 0.75, 0.9]
    assert len(evidence["candidates"]) == 4
    assert "SOME_KEY" not in json.dumps(evidence)


# Every key that OpenEvolve's configuration has, with a value: one that is used here, or one that is
# named as not used, or as used by models alone.
USED = {
    "max_iterations": 3,
    "checkpoint_interval": 2,
    "random_seed": 7,
    "file_suffix": ".txt",
    "database.num_islands": 2,
    "database.random_seed": 7,
    "database.feature_dimensions": "[size]",
    "evaluator.timeout": 33,
    "evaluator.max_retries": 1,
    "evaluator.cascade_evaluation": "true",
    "evaluator.cascade_thresholds": "[0.1, 0.2]",
}
OF_MODELS = {
    "diff_based_evolution": "true",
    "llm.api_base": "http://127.0.0.1:9",
    "llm.api_key": "'${KEY}'",
    "llm.name": "one",
    "llm.weight": 1,
    "llm.models": "[{name: one}]",
    "llm.primary_model": "one",
    "llm.primary_model_weight": 1,
    "llm.secondary_model": "two",
    "llm.secondary_model_weight": 1,
    "llm.system_message": "Be brief.",
    "llm.temperature": 0.5,
    "llm.max_tokens": 100,
    "llm.timeout": 10,
    "llm.retries": 1,
    "llm.retry_delay": 1,
    "llm.max_budget_usd": 1,
    "prompt.system_message": "Be brief.",
    "prompt.num_top_programs": 1,
    "prompt.num_diverse_programs": 1,
}
NOT_USED = {
    "": "log_level log_dir language max_code_length diff_pattern early_stopping_patience"
    " convergence_threshold early_stopping_metric max_tasks_per_child",
    "llm": "top_p reasoning_effort evaluator_models provider init_client random_seed manual_mode",
    "prompt": "template_dir evaluator_system_message programs_as_changes_description"
    " system_message_changes_description initial_changes_description use_template_stochasticity"
    " template_variations use_meta_prompting meta_prompt_weight include_artifacts"
    " max_artifact_bytes artifact_security_filter suggest_simplification_after_chars"
    " include_changes_under_chars concise_implementation_max_lines"
    " comprehensive_implementation_min_lines diff_summary_max_line_len diff_summary_max_lines"
    " code_length_threshold",
    "database": "db_path in_memory log_prompts population_size archive_size elite_selection_ratio"
    " exploration_ratio exploitation_ratio diversity_metric feature_bins diversity_reference_size"
    " migration_interval migration_rate artifacts_base_path artifact_size_threshold"
    " cleanup_old_artifacts artifact_retention_days max_snapshot_artifacts novelty_llm"
    " embedding_model similarity_threshold",
    "evaluator": "memory_limit_mb cpu_limit distributed parallel_evaluations use_llm_feedback"
    " llm_feedback_weight enable_artifacts max_artifact_storage",
    "evolution_trace": "enabled format include_code include_prompts output_path buffer_size"
    " compress",
}


def remark_on(attune, text, *judge):
    """What is said of a config.yaml. Nothing runs."""
    (attune.folder / "config.yaml").write_text(text)
    done = attune("evolve", "prog.txt", *judge, "--list-genes", "-c", "config.yaml")
    assert done.returncode == 0, done.stderr
    return done.stderr


def with_key(key, value):
    section, _, name = key.rpartition(".")
    return f"{section}: {{{name}: {value}}}\n" if section else f"{name}: {value}\n"


def keys_of_openevolve():
    for key, value in USED.items():
        yield key, value, None
    for key, value in OF_MODELS.items():
        yield key, value, "no model is asked for programs"
    for section, names in NOT_USED.items():
        for name in names.split():
            value = "[]" if name == "evaluator_models" else 1
            yield f"{section}.{name}".lstrip("."), value, "not used here"


@pytest.mark.parametrize("key, value, group", list(keys_of_openevolve()))
def test_every_key_of_openevolve_is_used_or_named(attune, key, value, group):
    said = remark_on(attune, with_key(key, value), "--evaluator", "evaluator.py")
    if group is None:
        assert said == ""
    else:
        assert f"config.yaml: {group}" in said and said.rstrip().endswith(f": {key}"), said


@pytest.mark.parametrize(
    "text, judge, said",
    [
        ("llm: {system_message: a}\nprompt: {system_message: b}\n", "evaluator",
         "not used here: llm.system_message (prompt.system_message comes first)"),
        ("random_seed: 1\ndatabase: {random_seed: 2}\n", "evaluator",
         "not used here: database.random_seed"),
        ("evaluator: {cascade_thresholds: [0.1, 0.2, 0.3]}\n", "evaluator",
         "not used here: evaluator.cascade_thresholds[2]"),
        ("database: {feature_dimensions: [complexity, size, diversity]}\n", "evaluator",
         "database.feature_dimensions: complexity, database.feature_dimensions: diversity\n"),
        ("evaluator: {cascade_evaluation: true, cascade_thresholds: [1], timeout: 3}\n", "command",
         "only for --evaluator: evaluator.cascade_evaluation, evaluator.cascade_thresholds\n"),
    ],
)  # fmt: skip
def test_a_part_that_does_not_act_is_named_too(attune, text, judge, said):
    judges = {"evaluator": ["--evaluator", "evaluator.py"]}
    judges["command"] = ["--eval-command", "cat {program}", "--metric", "x"]
    assert said in remark_on(attune, text, *judges[judge])


def test_keys_of_single_models_are_named(attune):
    (attune.folder / "config.yaml").write_text("""\
max_iterations: 2
llm:
  models:
    - {name: one, temprature: 0.5, top_p: 0.9, timeout: 5}
    - {name: two, reasoning_effort: high}
  evaluator_models: [{name: three, wieght: 2}]
""")
    result = attune.evolve("-c", "config.yaml")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("config.yaml")]
    for part in [
        "llm.models[0].temprature (did you mean llm.models[0].temperature?)",
        "llm.evaluator_models[0].wieght (did you mean llm.evaluator_models[0].weight?)",
        "llm.models[0].top_p",
        "llm.models[1].reasoning_effort",
        "llm.evaluator_models",
    ]:
        assert part in line
    assert "models[0].timeout" not in line and "[0].name" not in line
    assert "evaluator of your own" not in line


def test_an_option_comes_before_the_file(attune):
    (attune.folder / "config.yaml").write_text("max_iterations: 4\nevaluator: {timeout: 33}\n")
    assert attune.evolve("-c", "config.yaml", "-i", "2", "--eval-timeout", "44").returncode in (
        0,
        1,
    )
    evidence = json.loads((attune.folder / "run/evidence.json").read_text())
    assert len(evidence["candidates"]) == 2 and evidence["meta"]["external"]["seconds"] == 44


@pytest.mark.parametrize(
    "text, said",
    [
        ("llm:\n  api_key: sk-abc123\n", "config.yaml:2: llm.api_key: write the name"),
        ("llm:\n  models:\n  - {name: a, api_key: sk-abc123}\n", "config.yaml:3: llm.models[0]."),
        ("llm:\n  primary_model: ${MODEL}\n", "config.yaml:2: llm.primary_model: '${MODEL}'"),
        ("llm:\n  api_base: ${BASE}\n", "config.yaml:2: llm.api_base: '${BASE}': variables"),
        ("max_iterations: many\n", "config.yaml:1: max_iterations: 'many' is no whole number"),
        ("evaluator:\n  timeout: -1\n", "config.yaml:2: evaluator.timeout: -1 is not in"),
        ("evaluator: 3\n", "config.yaml:1: evaluator has no keys"),
        ("a: [1\nb: 2\n", "this is no YAML"),
        ("- a\n- b\n", "it is no config.yaml"),
        ("evaluator:\n  cascade_thresholds: high\n", "is no list of such values"),
    ],
)
def test_a_wrong_config_is_refused_with_its_line(attune, text, said):
    (attune.folder / "config.yaml").write_text(text)
    result = attune.evolve("-c", "config.yaml")
    assert result.returncode == 2 and said in result.stderr
    assert "sk-abc123" not in result.stderr
    assert not (attune.folder / "calls").exists()


# ---- an evaluator in the shape of those that are published ----

SEARCH = """\
import random

STEPS = 20  # EVOLVE-PARAM STEPS {5,20,80,320} algorithm: points that are looked at
# EVOLVE-BLOCK-START search
def lowest(function, low, high, seed):
    dice = random.Random(seed)
    points = [dice.uniform(low, high) for _ in range(STEPS)]
    return min(points, key=function)
# EVOLVE-BLOCK-END


def run_search(seed):
    return lowest(lambda x: (x - 2) ** 2 + 1, -10, 10, seed)
"""
SEARCH_EVALUATOR = """\
import importlib.util
from openevolve.evaluation_result import EvaluationResult


def load(path):
    spec = importlib.util.spec_from_file_location("program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def evaluate(program_path):
    module = load(program_path)
    off = [abs(module.run_search(seed) - 2) for seed in range(5)]
    quality = 1 / (1 + sum(off) / len(off))
    return EvaluationResult(
        metrics={"runs": 1.0, "distance": max(off), "combined_score": quality},
        artifacts={"worst": f"{max(off):.3f} away"},
    )


def evaluate_stage1(program_path):
    found = hasattr(load(program_path), "run_search")
    return EvaluationResult(metrics={"runs": 1.0, "combined_score": float(found)})


def evaluate_stage2(program_path):
    return evaluate(program_path)
"""


def test_a_python_program_is_evolved_by_a_cascade(attune):
    (attune.folder / "search.py").write_text(SEARCH)
    (attune.folder / "judge.py").write_text(SEARCH_EVALUATOR)
    result = attune(
        *("evolve", "search.py", "--evaluator", "judge.py", "-o", "run", "-i", "4", "--json", "-")
    )
    assert result.returncode == 0, result.stderr
    run = attune.folder / "run"
    assert "STEPS = 320" in (run / "best/best_program.py").read_text()
    program = json.loads((run / "best/best_program_info.json").read_text())
    assert program["language"] == "python"
    meta = json.loads((run / "evidence.json").read_text())["meta"]
    assert meta["external"]["start"]["stages"] == 2
    record = records(run)[0]["evaluation"]["claims"]["by_the_evaluator"]
    assert record["artifacts"]["worst"].endswith("away")


def test_a_person_writes_a_program_that_has_nothing_to_choose(attune):
    (attune.folder / "plain.txt").write_text(
        "# EVOLVE-BLOCK-START\nscore 2\n# EVOLVE-BLOCK-END\n# stays\n"
    )
    (attune.folder / "score.py").write_text(
        "def evaluate(path):\n"
        "    return {'combined_score': float(open(path).read().split('score')[1].split()[0])}\n"
    )
    answers = attune.folder / "answers"
    answers.mkdir()
    (answers / "answer-a.txt").write_text(
        "<<<<<<< SEARCH\nscore 2\n=======\nscore 7\n>>>>>>> REPLACE\n"
    )
    options = ("evolve", "plain.txt", "--evaluator", "score.py", "-o", "out", "-i", "2")
    refused = attune(*options)
    assert refused.returncode == 2 and "nothing to choose" in refused.stderr
    done = attune(*options, "--propose", f"manual:{answers}")
    assert done.returncode == 0, done.stderr
    best = (attune.folder / "out/best/best_program.txt").read_text()
    assert best == "# EVOLVE-BLOCK-START\nscore 7\n# EVOLVE-BLOCK-END\n# stays\n"
    result = json.loads((answers / "answer-a.txt.result.json").read_text())
    assert result["accepted"] and result["metrics"] == {"combined_score": 7.0}
    task = (answers / "TASK.md").read_text()
    assert "more is better" in task and "attention" not in task
    assert attune("evolve", "--replay", "out").returncode == 0


# ---- the other way round ----


def test_attune_is_an_evaluator(attune):
    shutil.copy(ROOT / "examples/cpu_attention/naive.cpp", attune.folder / "naive.cpp")
    (attune.folder / "broken.cpp").write_text((attune.folder / "naive.cpp").read_text() + "}\n")
    code = (
        "import json, sys; from attune.openevolve import evaluator; "
        "evaluate = evaluator('--shape', '1x2x64x32'); "
        "print(json.dumps([evaluate('naive.cpp'), evaluate('broken.cpp')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=attune.folder,
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
    )
    assert done.returncode == 0, done.stderr
    good, broken = json.loads(done.stdout)
    assert good["correct"] == 1 and 0 < good["combined_score"] < 1, good
    assert broken["combined_score"] == 0
    assert broken["artifacts"]["verdict"] == "compile_failed"
    assert "broken.cpp:" in broken["artifacts"]["compiler_errors"]
