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


@pytest.mark.full
def test_each_model_has_its_own_settings(tmp_path):
    text = CONFIG.format(url="URL", more="", runs=12).replace(
        "{name: never, weight: 0.0}",
        "{name: other, temperature: 1.5, max_tokens: 77, retries: 0, timeout: 9}",
    )
    with serving([stream(remark(str(n))) for n in range(40)]) as server:
        (tmp_path / "config.yaml").write_text(text.replace("URL", server.url))
        options = [*TINY, "--run", "run", "-c", "config.yaml"]
        done = attune("evolve", NAIVE, *options, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    asked = {(b["model"], b["temperature"], b["max_tokens"]) for _, _, b in server.requests}
    assert asked == {("small", 0.25, 500), ("other", 1.5, 77)}


@pytest.mark.parametrize("diffs", [True, False])
@pytest.mark.full
def test_the_form_of_answers_and_the_number_of_programs_are_taken(tmp_path, diffs):
    text = CONFIG.format(url="URL", more="", runs=8)
    text += f"diff_based_evolution: {str(diffs).lower()}\nprompt: {{num_top_programs: 0}}\n"
    with serving([stream(remark(str(n))) for n in range(40)]) as server:
        (tmp_path / "config.yaml").write_text(text.replace("URL", server.url))
        options = [*TINY, "--run", "run", "-c", "config.yaml"]
        done = attune("evolve", NAIVE, *options, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    questions = [body["messages"][1]["content"] for _, _, body in server.requests]
    assert len(questions) > 1
    for question in questions:
        assert ("<<<<<<< SEARCH" in question) == diffs
        assert "# Other correct programs" not in question


def test_an_option_is_for_all_models(tmp_path):
    with serving([stream(remark(str(n))) for n in range(20)]) as server:
        text = CONFIG.format(url=server.url, more="", runs=5).replace(
            "weight: 0.0", "temperature: 1.5"
        )
        (tmp_path / "config.yaml").write_text(text)
        options = [*TINY, "--run", "run", "-c", "config.yaml", "--llm", server.url]
        more = ["--llm-temperature", "0.125"]
        done = attune("evolve", NAIVE, *options, *more, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert {body["temperature"] for _, _, body in server.requests} == {0.125}


def test_different_keys_are_refused(tmp_path):
    done = evolve(tmp_path, "http://127.0.0.1:9/v1", ", api_key: '${OTHER}'")
    assert done.returncode == 2 and "one endpoint is asked with one key" in done.stderr


def test_the_example_for_openevolve_is_read(tmp_path):
    config = NAIVE.parents[1] / "cuda_attention" / "config.yaml"
    assert "${" not in config.read_text()  # OpenEvolve puts variables into api_key alone
    options = ["--iterations", "1", "--run", "run", "-c", config]
    done = attune("evolve", NAIVE, *TINY, *options, cwd=tmp_path, env=environment())
    assert done.returncode in (0, 1), done.stderr
    (line,) = [text for text in done.stderr.splitlines() if "config.yaml: " in text]
    assert "not known" not in line and "no model is asked for programs" in line
    for key in ("file_suffix", "evaluator.timeout", "evaluator.max_retries"):
        assert key in line.split("only for an evaluator of your own")[1]
    for key in ("evaluator.cascade_evaluation", "database.feature_dimensions"):
        assert key in line.split("only for an evaluator of your own")[1]


def test_several_endpoints_are_refused(tmp_path):
    done = evolve(tmp_path, "http://127.0.0.1:9/v1", ", api_base: http://127.0.0.1:8/v1")
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr and "127.0.0.1:8" in done.stderr
