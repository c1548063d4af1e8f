"""explain() describes the call that it is given, whatever the arguments."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import attune
import numpy as np
import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    """By case: how the call that was explained differs from the one that was made."""
    pytest.importorskip("torch")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("recorder") / "librecorder.so"
    include = f"-I{HERE.parents[1] / 'include'}"
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            include,
            HERE / "preload" / "recorder.c",
            "-o",
            library,
            "-ldl",
        ],
        check=True,
    )
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")])),
        "PYTHONPATH": attune.__path__[0] + "/..",
    }
    done = subprocess.run(
        [sys.executable, HERE / "preload" / "explained_calls.py"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_explained_is_what_is_called(differences):
    wrong = {case: difference for case, difference in differences.items() if difference}
    assert not wrong


def test_every_argument_is_there(differences):
    arguments = set(inspect.signature(attune.attention).parameters) - {"q", "k", "v"}
    assert arguments <= {case.split()[0] for case in differences} | {"max_seqlen_k"}


def test_gradients_and_arrays_are_there(differences):
    of_tensors = [case for case in differences if case.split()[-1].isdigit()]
    gradients = [case for case in differences if case.endswith("with gradients")]
    arrays = [case for case in differences if case.endswith("of arrays")]
    assert len(gradients) == len(of_tensors) and len(arrays) > len(of_tensors) * 0.9


def test_a_call_that_torch_computes():
    torch = pytest.importorskip("torch")
    forward_ad = torch.autograd.forward_ad
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q.detach(), torch.randn_like(q))
        said = attune.explain(dual, q, q, return_lse=True)
    assert (said["computed_by"], said["chosen"], said["mode"]) == ("torch", "", "none")
    assert "attune has no backward pass" in said["reason"] and "no_grad" in said["reason"]
    with torch.no_grad():
        said = attune.explain(q, q, q, return_lse=True)
        assert said["computed_by"] == "attune" and said["chosen"]
        assert attune.explain(q, q, q)["threads"] == torch.get_num_threads()


@pytest.mark.parametrize(
    "options", [{"user_data": np.zeros(3, np.float32)}, {"score_mod": "return score;"}]
)
def test_arrays_that_are_refused(rng, options):
    q = rng.standard_normal((1, 2, 8, 16)).astype(np.float32)
    for function in (attune.attention, attune.explain):
        with pytest.raises(attune.Error, match=next(iter(options))):
            function(q, q, q, **options)
