"""python -m attune.sweep --generations: the search over ways to compute attention in torch."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")

from attune import _attention_genes, sweep  # noqa: E402
from attune._attention_genes import Genome  # noqa: E402

SMALL = ["--shape", "1x2x48x16", "--dtype", "f32", "--rounds", "2", "--repetitions", "2"]


def inputs(shape=(1, 2, 70, 16)):
    torch.manual_seed(0)
    return [torch.randn(shape) for _ in range(3)]


def reachable(device, depth=3):
    """Every genome in so many mutations from the first one."""
    seen, front = {Genome()}, [Genome()]
    for _ in range(depth):
        front = [c for g in front for *_, c in _attention_genes.children(g, device)]
        front = [c for c in dict.fromkeys(front) if c not in seen]
        seen |= set(front)
    return seen


def test_matmul_genomes_compute_attention():
    q, k, v = inputs()
    right = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    genomes = [g for g in reachable("cpu") if g.form == "matmul"]
    assert {g.walk for g in genomes} == {"whole", "tiles", "online"}
    for genome in genomes:
        call, context = _attention_genes.variant(genome)
        with context():
            out = call(q, k, v)
        limit = 2e-2 if genome.numbers == "bfloat16" else 1e-5
        assert out.dtype == q.dtype and (out - right).abs().max() < limit, genome.name


def test_names_tell_genomes_apart():
    for device in ("cpu", "cuda"):
        genomes = reachable(device)
        used = {}
        for genome in genomes:
            other = used.setdefault(genome.name, genome)
            # Genes that a form does not have do not count.
            assert other.form == genome.form and other.numbers == genome.numbers


DOCUMENTED = {
    "fuse_qk_softmax": "algorithm",
    "fuse_softmax_pv": "algorithm",
    "online_softmax": "algorithm",
    "tiled_computation": "algorithm",
    "use_float32_accum": "implementation",
    "vectorized_loads": "implementation",
    "warp_reductions": "implementation",
    "shared_memory": "implementation",
    "tune_block_size": "hardware",
    "tune_threads": "hardware",
    "enable_tf32": "hardware",
    "use_cudnn_flags": "hardware",
}
NEEDS_TILES, NEEDS_A_CPU = "tune_block_size", "tune_threads"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_mutation_acts(name, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    (level,) = [level for level, known, *_ in _attention_genes.MUTATIONS if known == name]
    assert level == DOCUMENTED[name]
    parent = Genome(walk="tiles") if name == NEEDS_TILES else Genome()
    device = "cpu" if name == NEEDS_A_CPU else "cuda"
    found = [c for _, m, c in _attention_genes.children(parent, device) if m == name]
    assert found and all(child != parent for child in found)


def test_rungs_are_reached_from_every_form():
    for form in ("matmul", "sdpa", "attune"):
        made = _attention_genes.children(Genome(form=form, numbers="bfloat16"), "cuda")
        rungs = {m: c for _, m, c in made if c.mode != "auto"}
        assert {m: c.mode for m, c in rungs.items()} == {
            "vectorized_loads": "fused",
            "warp_reductions": "naive",
            "shared_memory": "tiled",
            "tensor_cores": "mma",
        }
        assert all(c == Genome("attune", mode=c.mode, numbers="bfloat16") for c in rungs.values())


def test_levels_and_switches():
    levels = {level for level, *_ in _attention_genes.MUTATIONS}
    assert levels == {"algorithm", "implementation", "hardware"}
    names = {m for _, m, _ in _attention_genes.children(Genome(), "cuda")}
    assert {"fuse_qk_softmax", "online_softmax", "enable_tf32", "use_cudnn_flags"} <= names
    assert "enable_tf32" not in {m for _, m, _ in _attention_genes.children(Genome(), "cpu")}
    threads = torch.get_num_threads()
    genome = dataclasses.replace(Genome(), switches=("cudnn_benchmark", "tf32"), threads=1)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    with _attention_genes.variant(genome)[1]():
        assert torch.backends.cudnn.benchmark and torch.get_num_threads() == 1
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark) == before
    assert torch.get_num_threads() == threads


def test_generations(tmp_path, capsys):
    out = tmp_path / "evidence" / "generations.json"
    options = [*SMALL, "--generations", "2", "--elites", "2", "--children", "4"]
    code = sweep.main([*options, "--out", str(out)])
    said, found = capsys.readouterr().out, json.loads(out.read_text())
    assert code == (0 if found["verdict"].startswith("Faster") else 1)
    assert found["verdict"] in said and "Gen 0: 1 tried" in said
    first, second = found["generations"]
    assert first["elites"] == ["matmul"] and len(second["elites"]) == 2
    tried = [r for r in second["results"] if "mutation" in r]
    assert len(tried) == 4 and all(r["parent"] == "matmul" and r["level"] for r in tried)
    for r in found["final"]:
        assert len(r["repetitions_us"]) == len(r["repetitions_fitness"]) == 2 and r["spread"] >= 0
    assert {r["name"] for r in found["final"]} == {"sdpa_default", *second["elites"]}


def test_wrong_candidates_are_no_elites(monkeypatch):
    honest = _attention_genes._call

    def wrong(g, q, k, v):
        return honest(g, q, k, v) * (1.01 if g.walk == "tiles" else 1)

    monkeypatch.setattr(_attention_genes, "_call", wrong)
    with torch.no_grad():
        found = sweep.evolve([1, 2, 32, 16], torch.float32, "cpu", 2, 3, 1, 1, children=50)
    results = {r["name"]: r for r in found["generations"][1]["results"]}
    assert results["matmul+tiles128"]["fitness"] == 0
    assert "wrong by" in results["matmul+tiles128"]["why"]
    assert "matmul+tiles128" not in found["generations"][1]["elites"]


def test_verdict_needs_every_repetition():
    best = {"name": "x", "fitness": 1.2, "interval": [1.1, 1.3], "spread": 0.1}
    base = {"name": sweep.BASELINE, "fitness": 1.0, "interval": [1, 1]}
    assert sweep.verdict([base]) == "Nothing but torch's default was right."
    right = {**best, "repetitions_fitness": [1.2, 1.1, 1.3]}
    assert sweep.verdict([right, base]).startswith("Faster than torch's SDPA: x: 1.200x")
    unsure = {**best, "repetitions_fitness": [1.2, 0.9, 1.3]}
    assert "in 2 of 3 repetitions" in sweep.verdict([unsure, base])
    assert sweep.verdict([unsure, base]).startswith("Nothing faster")


def test_bad_options(capsys):
    for options in (["--generations", "-1"], ["--generations", "1", "--elites", "0"]):
        with pytest.raises(SystemExit) as error:
            sweep.main(options)
        assert error.value.code == 2
    assert "at least" in capsys.readouterr().err
    assert sweep.main(["--list-mutations"]) == 0
    assert "online_softmax" in capsys.readouterr().out
