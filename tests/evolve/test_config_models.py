"""attune evolve --config: the models of a config.yaml are asked for programs."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "endpoint"))
from endpoint import NAIVE, TINY, attune, environment, remark, serving, stream  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")

CONFIG = """
max_iterations: {runs}
llm:
  api_base: {url}
  temperature: 0.25
  max_tokens: 500
  system_message: Be brief.
  models:
    - {{name: small, weight: 1.0}}
    - {{name: never, weight: 0.0{more}}}
"""


def evolve(tmp_path, url, more="", runs=5, **variables):
    (tmp_path / "config.yaml").write_text(CONFIG.format(url=url, more=more, runs=runs))
    options = ["--run", "run", "-c", "config.yaml"]
    return attune("evolve", NAIVE, *TINY, *options, cwd=tmp_path, env=environment(**variables))


def test_an_endpoint_of_this_machine_is_asked(tmp_path):
    with serving([stream(remark(str(n))) for n in range(20)]) as server:
        done = evolve(tmp_path, server.url + "/v1")
    assert done.returncode == 0, done.stderr
    path, _, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["model"] == "small" and body["temperature"] == 0.25
    assert {request["model"] for _, _, request in server.requests} == {"small"}
    assert "Be brief." in body["messages"][0]["content"]
    assert "no model is asked" not in done.stderr


def test_an_endpoint_elsewhere_needs_a_key(tmp_path):
    done = evolve(tmp_path, "https://models.invalid/v1", runs=1)
    assert done.returncode == 0, done.stderr
    assert "no model is asked for programs" in done.stderr and "llm.api_base" in done.stderr


def test_several_endpoints_are_refused(tmp_path):
    done = evolve(tmp_path, "http://127.0.0.1:9/v1", ", api_base: http://127.0.0.1:8/v1")
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr and "127.0.0.1:8" in done.stderr
