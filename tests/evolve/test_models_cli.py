"""attune evolve PROGRAM with language models and persons: endpoints that misbehave, answers that
attack, keys that must not stay, replays without a network."""

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "endpoint"))
from endpoint import (  # noqa: E402
    ATTUNE,
    NAIVE,
    PATIENCE,
    TINY,
    attune,
    dripping,
    edit,
    endless,
    environment,
    plain,
    remark,
    serving,
    silent,
    status,
    stream,
)

KEY = "sk-canary-0123456789abcdef"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")


def asked(server, tmp_path, *more, env=None):
    """Runs until the script is over, and interrupts: the seconds from then to the end."""
    process = subprocess.Popen(
        [ATTUNE, "evolve", NAIVE, *TINY, "--run", "run", "--budget", "100s"]
        + ["--llm", server.url, "--llm-share", "1", "--llm-parallel", "1", *more],
        cwd=tmp_path,
        env=env or environment(ATTUNE_LLM_KEY=KEY),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not server.done.wait(0.05):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=60)
        return time.monotonic() - begin, talk
    finally:
        process.kill()
        process.communicate()


def evidence_of(folder):
    return json.loads((folder / "evidence.json").read_text())


def files_with(folder, text):
    needle = text.encode()
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and needle in path.read_bytes()
    ]


def test_an_endpoint_may_misbehave(tmp_path):
    with serving([]) as elsewhere:
        script = [
            stream(remark("one")),
            status(500, b"oops"),
            plain(remark("two")),
            status(429, b'{"error":{"message":"slowly"}}', Retry_After="1"),
            stream(remark("three")),
            silent,
            silent,
            status(400, json.dumps({"error": {"message": f"bad key {KEY}!"}}).encode()),
            stream(remark(f"the key is {KEY}")),
            status(200, b"<html><body>Welcome</body></html>", "text/html"),
            status(200, b'{"choices": 1}'),
            endless,
            stream(remark("five")),
            stream("half of an ans", end=False),
            stream("half of an ans", end=False),
            status(307, Location=elsewhere.url + "/v1/chat/completions"),
            status(307, Location="/other"),
            stream(remark("six")),
        ]
        steps = len(script)
        with serving(script) as server:
            options = ["--llm-retries", "1", "--llm-retry-delay", "0.01"]
            options += ["--llm-idle-timeout", "0.6", "--model", "m", "--price", "m=1,10"]
            seconds, talk = asked(server, tmp_path, *options)
            requests, times = server.requests, server.times
        assert elsewhere.requests == [], "a redirect to another host was followed"
    assert seconds < 5, "Ctrl-C waits for an answer"
    assert len(requests) == steps + 1
    for _path, headers, body in requests:
        assert headers["Authorization"] == f"Bearer {KEY}"
        assert body["model"] == "m" and body["stream"] is True
        assert "EVOLVE-BLOCK-START" in body["messages"][-1]["content"]
    assert {path for path, _, _ in requests} == {"/v1/chat/completions", "/other"}
    assert times[4] - times[3] >= 0.99, "Retry-After was not heeded"

    folder = tmp_path / "run"
    evidence = evidence_of(folder)
    exchanges = evidence["exchanges"]
    expected = [
        (200, 1, "applied", ""),
        (200, 2, "applied", ""),
        (200, 2, "applied", ""),
        (200, 2, "failed", "silent for 0.6 s"),
        (400, 1, "failed", "HTTP 400: bad key [key]!"),
        (200, 1, "applied", ""),
        (200, 1, "failed", "HTML"),
        (200, 1, "failed", 'no "choices"'),
        (200, 1, "failed", "more than 4194304 bytes"),
        (200, 1, "applied", ""),
        (200, 2, "failed", "cut off"),
        (307, 1, "failed", "another place"),
        (200, 2, None, ""),  # it was perhaps being judged when the run was stopped
        (0, 1, "failed", "stopped"),
    ]
    for exchange, (code, tries, outcome, error) in zip(exchanges, expected, strict=True):
        assert error in exchange["error"], exchange
        assert (exchange["status"], exchange["tries"]) == (code, tries), exchange
        assert outcome in (exchange["outcome"], None), exchange
    assert exchanges[0]["tokens_in"] == 1000 and exchanges[0]["cost"] == pytest.approx(0.003)
    (tally,) = evidence["proposers"]["tallies"]
    assert tally["questions"] == 14 and tally["failed"] == 8 and tally["applied"] in (5, 6)
    assert tally["requests"] == steps + 1
    assert "m: 14 questions (8 failed)" in talk
    assert "the key is [key]" in (folder / "evidence.json").read_text()
    assert files_with(tmp_path, KEY) == []
    assert "Proposals from models and persons" in (folder / "report.html").read_text()

    # The server is gone, and nobody has a key.
    replayed = attune("evolve", "--replay", folder, cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    reported = attune("report", folder, cwd=tmp_path)
    assert reported.returncode == 0 and "14 questions" in reported.stdout


LINE = "static void attend(const float* q, const float* k, const float* v, float* out, int keys,"
ENTRY = (
    'extern "C" void run_attention(const float* Q, const float* K, const float* V, float* O,'
    " int batch,"
)


def attack(code, call=""):
    """Host code before the function, and in its first lines."""
    first = "  float largest = -INFINITY;"
    return edit(LINE, f"#include <cstdio>\n{code}\n{LINE}") + edit(first, f"{first}\n  {call}")


def test_answers_that_attack_do_nothing(tmp_path):
    canary, secret = tmp_path / "canary", tmp_path / "secret"
    secret.write_text("int the_secret_is_4711;\n")
    write = f'if (std::FILE* f = std::fopen("{canary}", "w")) std::fclose(f);'
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        contact = (
            "#include <arpa/inet.h>\n#include <sys/socket.h>\n#include <unistd.h>\n"
            "static void contact() { int s = socket(AF_INET, SOCK_STREAM, 0); sockaddr_in a{}; "
            f"a.sin_family = AF_INET; a.sin_port = htons({port}); "
            "a.sin_addr.s_addr = htonl(INADDR_LOOPBACK); "
            "if (connect(s, (sockaddr*)&a, sizeof a) == 0) (void)!write(s, &a, sizeof a); }\n"
        )
        run = f'static void run_it() {{ (void)!std::system("touch {canary}"); }}'
        read = (
            f'static void spy() {{ if (std::FILE* f = std::fopen("{secret}", "r")) {{ '
            f"std::fclose(f); {write} }} }}"
        )

        def early(code):
            return f"__attribute__((constructor)) static void early() {{ {code} }}"

        script = [
            stream(edit(ENTRY, "static int stolen;\n" + ENTRY)),
            stream("```cpp\n" + NAIVE.read_text() + "int more;\n```\n"),
            stream(attack(early(write))),
            stream(attack(f"static void late() {{ {write} }}", "late();")),
            stream(attack(contact + early("contact();"))),
            stream(attack(contact, "contact();")),
            stream(attack("#include <cstdlib>\n" + run, "run_it();")),
            stream(attack(read, "spy();")),
            stream(attack(f'#include "{secret}"')),
            stream(attack(f'asm(".incbin \\"{secret}\\"");')),
            stream(remark("the one before has been judged when this one is")),
        ]
        with serving(script) as server:
            asked(server, tmp_path, "--model", "m", "--llm-retries", "0")
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert not canary.exists()
    folder = tmp_path / "run"
    evidence = evidence_of(folder)
    exchanges = evidence["exchanges"]
    outcomes = [e["outcome"] for e in exchanges]
    assert outcomes[:2] == ["cheated", "cheated"]
    assert exchanges[1]["repairs"] == 0, "the reason was not reported back"
    assert outcomes[2:10] == ["applied"] * 8, exchanges
    assert files_with(folder, "the_secret_is_4711") == []
    # What begins before the first call, or asks for other files, is not even a candidate.
    verdicts = {c["proposal"]["n"]: c["evaluation"]["verdict"] for c in evidence["candidates"]}
    judged = [verdicts[e["proposal"]] for e in exchanges[2:10]]
    assert "ok" not in judged, judged
    # The block alone changed, in every text that was compiled.
    assert attune("evolve", "--replay", folder, cwd=tmp_path).returncode == 0


@pytest.mark.full
def test_a_person_answers_by_files(tmp_path):
    process = subprocess.Popen(
        [ATTUNE, "evolve", NAIVE, *TINY, "--run", "run", "--budget", "100s"]
        + ["--propose", "manual"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = tmp_path / "run" / "manual"

    def wait_for(path):
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return path.read_text()

    try:
        task = wait_for(folder / "TASK.md")
        assert "<<<<<<< SEARCH" in task and "largest = std::fmax" in task
        (tmp_path / "draft").write_text(remark("by hand"))
        (tmp_path / "draft").rename(folder / "answer-a.txt")
        (tmp_path / "draft").write_text(NAIVE.read_text().replace("std::fmax(", "fmaxf("))
        (tmp_path / "draft").rename(folder / "answer-b.cpp")
        first = json.loads(wait_for(folder / "answer-a.txt.result.json"))
        second = json.loads(wait_for(folder / "answer-b.cpp.result.json"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert first["verdict"] == "invalid" and "same binary" in first["reason"]
    assert second["verdict"] == "compile_failed" or "over_start" in second
    assert json.loads((folder / "status.json").read_text())["running"] is False
    evidence = evidence_of(tmp_path / "run")
    assert [e["who"] for e in evidence["exchanges"]] == ["answer-a.txt", "answer-b.cpp"]
    shutil.rmtree(folder)
    replayed = attune("evolve", "--replay", "run", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr


def test_limits_of_a_run_hold(tmp_path):
    script = [stream(remark(f"number {n}")) for n in range(10)]
    with serving(script) as server:
        process = subprocess.Popen(
            [ATTUNE, "evolve", NAIVE, *TINY, "--run", "run", "--budget", "100s"]
            + ["--llm", server.url, "--model", "m", "--price", "m=0,100", "--max-cost", "0.05"]
            + ["--llm-answer-tokens", "400", "--llm-parallel", "1"],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for line in process.stderr:
                if "a limit of the run is reached" in line:
                    break
            else:
                raise AssertionError("the limit was not reached")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        # 0.04 for one at its worst; the first took 0.02, and the second would not fit after it.
        assert len(server.requests) == 1
        assert "Authorization" not in server.requests[0][1], "there is no key"
    (tally,) = evidence_of(tmp_path / "run")["proposers"]["tallies"]
    assert tally["cost"] == pytest.approx(0.02)


def until_said(server_url, tmp_path, words, *options, most=60):
    """Runs until the tool says so, then stops it. Seconds until then, and all that it said."""
    process = subprocess.Popen(
        [ATTUNE, "evolve", NAIVE, *TINY, "--run", "run", "--budget", "100s"]
        + ["--llm", server_url, "--model", "m", "--llm-parallel", "1", *options],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    begin, said = time.monotonic(), ""
    try:
        for line in process.stderr:
            said += line
            if words in line:
                break
        else:
            raise AssertionError(f"{words!r} was not said: {said}")
        seconds = time.monotonic() - begin
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.communicate()
    assert seconds < most
    return seconds, said


@pytest.mark.parametrize(
    "option, requests",
    [("--max-requests=3", 3), pytest.param("--max-tokens=13000", 2, marks=pytest.mark.full)],
)
def test_requests_and_tokens_are_limited(tmp_path, option, requests):
    # Each answer says that it took 1200 tokens; asked for are 400 and the question's.
    with serving([stream(remark(f"number {n}")) for n in range(20)]) as server:
        words = "a limit of the run is reached (--max-requests, --max-tokens, --max-cost)"
        until_said(server.url, tmp_path, words, option, "--llm-answer-tokens", "400")
        asked = len(server.requests)
    (tally,) = evidence_of(tmp_path / "run")["proposers"]["tallies"]
    assert tally["requests"] == asked
    if option.startswith("--max-requests"):
        assert asked == requests
    else:
        assert asked >= requests
        assert tally["tokens_in"] + tally["tokens_out"] <= 13000


def test_a_dripping_server_has_a_time_limit(tmp_path):
    with serving([dripping, dripping, stream(remark("one"))]) as server:
        options = ["--llm-timeout", "1", "--llm-idle-timeout", "60", "--llm-retries", "0"]
        until_said(server.url, tmp_path, "m gave no answer: ", *options)
    first = evidence_of(tmp_path / "run")["exchanges"][0]
    assert "1 s" in first["error"] and 0.9 < first["seconds"] < 10, first


def test_a_dead_endpoint_is_named_at_once(tmp_path):
    options = ["--llm-retries", "5", "--llm-retry-delay", "20"]
    _, said = until_said("http://127.0.0.1:9/v1", tmp_path, "it is asked again in", *options)
    assert said.count("it is asked again in") == 1 and "m: " in said


@pytest.mark.full
@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_a_certificate_of_nobody_is_refused(tmp_path):
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with serving([]) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        process = subprocess.Popen(
            [ATTUNE, "evolve", NAIVE, *TINY, "--run", "run", "--budget", "100s", "--model", "m"]
            + ["--llm", f"https://localhost:{server.server_port}", "--llm-share", "1"],
            cwd=tmp_path,
            env=environment(ATTUNE_LLM_KEY=KEY),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            talk = next(line for line in process.stderr if "no more is asked" in line)
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        assert server.requests == []
    assert "certificate" in talk
    assert KEY.encode() not in environ
    exchanges = evidence_of(tmp_path / "run")["exchanges"]
    assert {e["tries"] for e in exchanges} == {1}, "it was tried again"


@pytest.mark.full
def test_a_killed_run_goes_on_with_its_models(tmp_path):
    with serving([stream(remark("one")), stream(remark("two"))]) as server:
        process = subprocess.Popen(
            [ATTUNE, "evolve", NAIVE, *TINY, "--run", "run", "--budget", "6ev"]
            + ["--llm", server.url, "--model", "m", "--llm-share", "1"],
            cwd=tmp_path,
            env=environment(OPENAI_API_KEY=KEY),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        assert server.done.wait(PATIENCE)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        server.closing.set()
        server.script += [stream(remark(f"later {n}")) for n in range(20)]
        before = len(server.requests)
        result = attune("evolve", "--resume", "run", cwd=tmp_path)
        assert "Traceback" not in result.stderr
        assert len(server.requests) > before, result.stderr
        assert server.requests[0][1]["Authorization"] == f"Bearer {KEY}"
    assert len(evidence_of(tmp_path / "run")["candidates"]) == 6
    assert attune("evolve", "--replay", "run", cwd=tmp_path).returncode == 0
    assert files_with(tmp_path, KEY) == []


LLM = ["--llm", "http://127.0.0.1:9"]


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["program.cpp", "--model", "m"], "--llm"),
        (["program.cpp", *LLM], "it needs a --model"),
        (["program.cpp", "--llm", "nowhere", "--model", "m"], "is no URL"),
        (["program.cpp", "--llm", "http://me:secret@h", "--model", "m"], "would be written"),
        (["program.cpp", "--llm", "http://h/?key=secret", "--model", "m"], "'?'"),
        (["program.cpp", *LLM, "--model", "m", "--max-cost", "1"], "--price m=IN,OUT"),
        (["program.cpp", *LLM, "--model", "m", "--price", "m"], "is no price"),
        (["program.cpp", *LLM, "--model", "m", "--price", "x=1,2"], "x is no --model"),
        (["program.cpp", *LLM, "--model", "m:0"], "weight"),
        (["program.cpp", *LLM, "--model", "m", "--llm-share", "0"], "share"),
        (["program.cpp", *LLM, "--model", "m", "--llm-key-env", "NO_SUCH"], "NO_SUCH is not set"),
        (["program.cpp", "--propose", "auto"], "manual:FOLDER"),
        ([*LLM, "--model", "m"], "are for a PROGRAM"),
    ],
)
def test_wrong_usage_is_explained(tmp_path, args, complaint):
    shutil.copy(NAIVE, tmp_path / "program.cpp")
    result = attune("evolve", *args, *TINY, "--run", "run", "--budget", "1ev", cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert complaint in result.stderr
    assert "secret" not in result.stderr or "written" not in complaint
    assert not (tmp_path / "run" / "run.db").exists()
