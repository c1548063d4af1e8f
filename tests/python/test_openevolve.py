"""The real OpenEvolve: with our judge as its evaluator, and as a reader of our checkpoints."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ATTUNE_BUILD_DIR", ROOT / "build")).resolve()
ATTUNE = Path(os.environ.get("ATTUNE_BIN", BUILD / "attune")).resolve()
PACKAGE = "openevolve==0.4.0"

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def python():
    """Of a virtual environment with OpenEvolve, which is made once."""
    folder = ROOT / ".cache" / "openevolve"
    program = folder / "bin" / "python"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.parent / "openevolve.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        probe = [program, "-c", "import openevolve.cli"]
        if not program.exists() or subprocess.run(probe, capture_output=True).returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            install = [program, "-m", "pip", "install", "--quiet", "--no-input", PACKAGE]
            done = subprocess.run(install, capture_output=True, text=True, timeout=900)
            if done.returncode != 0:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"{PACKAGE} cannot be installed here: {done.stderr.strip()[-300:]}")
    return program


# Applies to whatever program OpenEvolve takes as the parent: the line that it looks for stays.
CHANGE = """\
A row with a negative sum would be wrong.

<<<<<<< SEARCH
  for (int d = 0; d < head_dim; ++d) out[d] /= sum;
=======
  {line}  // attempt {n}
  for (int d = 0; d < head_dim; ++d) out[d] /= sum;
>>>>>>> REPLACE
"""


class Model(BaseHTTPRequestHandler):
    """Answers every request with a change of the program. The second one does not compile."""

    asked = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked += 1
        line = "this is no C++" if self.asked == 2 else "if (sum < 0) return;"
        text = CHANGE.replace("{n}", str(self.asked)).replace("{line}", line)
        choice = {"index": 0, "finish_reason": "stop"}
        choice["message"] = {"role": "assistant", "content": text}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "local"}
        answer["choices"] = [choice]
        answer["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def model():
    Model.asked = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def artifacts_of(program):
    """What OpenEvolve kept of the evaluator's artifacts, as one text."""
    text = program["artifacts_json"] or ""
    if program["artifact_dir"]:
        text += "".join(p.read_text() for p in Path(program["artifact_dir"]).iterdir())
    return text


def test_openevolve_runs_with_our_judge(python, model, tmp_path):
    shutil.copy(ROOT / "examples/cpu_attention/naive.cpp", tmp_path / "naive.cpp")
    (tmp_path / "evaluator.py").write_text(
        "from attune.openevolve import evaluator\nevaluate = evaluator('--shape', '1x2x128x32')\n"
    )
    (tmp_path / "config.yaml").write_text(f"""\
max_iterations: 3
checkpoint_interval: 3
language: cpp
file_suffix: .cpp
llm:
  api_base: {model}
  api_key: none
  models: [{{name: local, weight: 1.0}}]
  retries: 0
evaluator: {{timeout: 120, parallel_evaluations: 1, cascade_evaluation: false}}
database: {{num_islands: 1}}
""")
    env = os.environ | {
        "PYTHONPATH": str(ROOT / "python"),
        "ATTUNE_BUILD_DIR": str(BUILD),
    }
    command = [python, "-m", "openevolve.cli", "naive.cpp", "evaluator.py", "-c", "config.yaml"]
    done = subprocess.run(
        [*command, "-o", "out"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert Model.asked >= 3
    best = json.loads((tmp_path / "out/best/best_program_info.json").read_text())
    assert best["metrics"]["correct"] == 1 and best["metrics"]["combined_score"] > 0
    checkpoint = tmp_path / "out/checkpoints/checkpoint_3"
    programs = [json.loads(p.read_text()) for p in checkpoint.glob("programs/*.json")]
    assert any("attempt" in p["code"] and p["metrics"]["correct"] == 1 for p in programs)
    # A refused program has its reason in the artifacts: in its file, or as files beside it.
    broken = [p for p in programs if p["metrics"]["combined_score"] == 0]
    assert [p for p in broken if "// attempt 2" in p["code"]], "one does not compile"
    for program in broken:
        assert "compile_failed" in artifacts_of(program), program["metrics"]


SIZES = """\
SIZE = 1  # EVOLVE-PARAM SIZE {1,2,4,8,16,32}
STEP = 1  # EVOLVE-PARAM STEP {1,2,3}
"""
EVALUATOR = """\
from openevolve.evaluation_result import EvaluationResult
def evaluate(path):
    size, step = (int(line.split()[2]) for line in open(path))
    if size == 4:
        raise ValueError("no size of 4")
    return EvaluationResult({"combined_score": float(size), "step": step}, {"log": "done"})
"""


@pytest.fixture(scope="module")
def checkpoint(python, tmp_path_factory):
    """Of a run with islands, with a program that fails, and artifacts."""
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "size.py").write_text(SIZES)
    (folder / "evaluator.py").write_text(EVALUATOR)
    (folder / "config.yaml").write_text("database: {num_islands: 2}\n")
    command = [ATTUNE, "evolve", "size.py", "--evaluator", "evaluator.py", "--python", python]
    done = subprocess.run(
        [*command, "-c", "config.yaml", "-i", "18", "-o", "run"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "run/checkpoints").iterdir()
    return made


READ = """\
import json, logging, sys
from openevolve.config import DatabaseConfig
from openevolve.database import ProgramDatabase

said = []
class Kept(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("openevolve").addHandler(Kept(logging.WARNING))
database = ProgramDatabase(DatabaseConfig(db_path=None, num_islands=2))
database.load(sys.argv[1])
names = "island_feature_maps best_program_id island_best_programs last_iteration current_island"
names += " island_generations last_migration_generation feature_stats"
print(json.dumps({
    "programs": {name: p.to_dict() for name, p in database.programs.items()},
    "metadata": {name: getattr(database, name) for name in names.split()}
    | {"archive": sorted(database.archive), "islands": [sorted(i) for i in database.islands]},
    "artifacts": {name: database.get_artifacts(name) for name in database.programs},
    "best": database.get_best_program().id,
    "said": said,
}))
"""


def test_openevolve_reads_every_field_of_our_checkpoints(python, checkpoint):
    read = subprocess.run(
        [python, "-c", READ, checkpoint], capture_output=True, text=True, timeout=60
    )
    assert read.returncode == 0, read.stderr[-2000:]
    there = json.loads(read.stdout.splitlines()[-1])
    assert there["said"] == []  # nothing is missing, nothing was recalculated
    written = [json.loads(path.read_text()) for path in checkpoint.glob("programs/*.json")]
    for program in written:  # as it was, and no field of theirs is without a value of ours
        loaded = there["programs"].pop(program["id"])
        assert loaded == program and set(loaded) == set(program)
        artifacts = program["artifacts_json"]
        assert there["artifacts"][program["id"]] == (json.loads(artifacts) if artifacts else {})
    assert not there["programs"]
    metadata = json.loads((checkpoint / "metadata.json").read_text())
    ours = metadata | {"archive": sorted(metadata["archive"])}
    ours["islands"] = [sorted(island) for island in metadata["islands"]]
    assert there["metadata"] == ours and len(ours["islands"]) == 2
    assert there["best"] == metadata["best_program_id"]
    best = next(p for p in written if p["id"] == there["best"])
    assert best["metrics"]["combined_score"] == max(p["metrics"]["combined_score"] for p in written)
    assert any(artifacts.get("log") == "done" for artifacts in there["artifacts"].values())


def test_the_visualiser_finds_what_it_shows(checkpoint):
    """What loader, pages and scripts of OpenEvolve's visualiser read of a checkpoint."""
    assert checkpoint.name.startswith("checkpoint_")
    metadata = json.loads((checkpoint / "metadata.json").read_text())
    nodes = {}
    for number, island in enumerate(metadata["islands"]):
        for name in island:
            program = json.loads((checkpoint / "programs" / f"{name}.json").read_text())
            assert program["id"] == name
            nodes.setdefault(name, {**program, "island": number})
    assert len(nodes) == len(list((checkpoint / "programs").iterdir())) > 4
    assert metadata["archive"] and set(metadata["archive"]) <= set(nodes)
    edges = [(n["parent_id"], n["id"]) for n in nodes.values() if n["parent_id"]]
    assert edges and {parent for parent, _ in edges} <= set(nodes)
    for parent, child in edges:
        assert nodes[parent]["generation"] == nodes[child]["generation"] - 1
    for node in nodes.values():
        assert node["code"].strip() and isinstance(node["generation"], int)
        assert node["metrics"] and all(type(n) in (int, float) for n in node["metrics"].values())
        assert "combined_score" in node["metrics"]
        assert isinstance(node["prompts"], dict)  # its page walks over them
        if node["artifacts_json"] is not None:  # a text, which the page parses
            assert isinstance(json.loads(node["artifacts_json"]), dict)
    assert any(node["artifacts_json"] for node in nodes.values())
    refused = [n for n in nodes.values() if n["metrics"]["combined_score"] == 0]
    assert refused and all("no size of 4" in n["artifacts_json"] for n in refused)
    info = json.loads((checkpoint / "best_program_info.json").read_text())
    best = nodes[metadata["best_program_id"]]
    assert {k: info[k] for k in ("id", "generation", "timestamp", "metrics", "language")} == {
        k: best[k] for k in ("id", "generation", "timestamp", "metrics", "language")
    }
    assert info["iteration"] == best["iteration_found"]
    assert info["current_iteration"] == metadata["last_iteration"] and info["saved_at"] > 1.7e9
    assert (checkpoint / "best_program.py").read_text() == best["code"]
