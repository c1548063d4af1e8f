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


READ = """\
import json, sys
from openevolve.config import DatabaseConfig
from openevolve.database import ProgramDatabase
database = ProgramDatabase(DatabaseConfig(db_path=None, num_islands=3))
database.load(sys.argv[1])
best = database.get_best_program()
print(json.dumps([len(database.programs), best.id, best.metrics, database.last_iteration]))
"""


def test_openevolve_reads_our_checkpoints(python, tmp_path):
    (tmp_path / "size.py").write_text("SIZE = 1  # EVOLVE-PARAM SIZE {1,2,4,8}\n")
    (tmp_path / "evaluator.py").write_text(
        "from openevolve.evaluation_result import EvaluationResult\n"
        "def evaluate(path):\n"
        "    size = int(open(path).read().split()[2])\n"
        "    return EvaluationResult({'combined_score': float(size)}, {'log': 'done'})\n"
    )
    command = [ATTUNE, "evolve", "size.py", "--evaluator", "evaluator.py", "--python", python]
    done = subprocess.run(
        [*command, "-i", "4", "-o", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "run/checkpoints").iterdir()
    read = subprocess.run([python, "-c", READ, folder], capture_output=True, text=True, timeout=60)
    assert read.returncode == 0, read.stderr[-2000:]
    count, best, metrics, last = json.loads(read.stdout.splitlines()[-1])
    assert count == last + 1 == 4 and metrics["combined_score"] == 8
    assert best == json.loads((folder / "metadata.json").read_text())["best_program_id"]
