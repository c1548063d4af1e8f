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


def test_tensors(differences):
    wrong = {case: difference for case, difference in differences.items() if difference}
    assert not wrong


def test_every_argument_is_there(differences):
    arguments = set(inspect.signature(attune.attention).parameters) - {"q", "k", "v"}
    assert arguments <= {case.split()[0] for case in differences} | {"max_seqlen_k"}


def test_gradients_do_not_matter():
    torch = pytest.importorskip("torch")
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    assert attune.explain(q, q, q, return_lse=True)["chosen"]
    assert attune.explain(q, q, q)["threads"] == torch.get_num_threads()


@pytest.mark.parametrize(
    "options", [{"user_data": np.zeros(3, np.float32)}, {"score_mod": "return score;"}]
)
def test_arrays_that_are_refused(rng, options):
    q = rng.standard_normal((1, 2, 8, 16)).astype(np.float32)
    for function in (attune.attention, attune.explain):
        with pytest.raises(attune.Error, match=next(iter(options))):
            function(q, q, q, **options)
