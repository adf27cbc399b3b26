"""The service as a real process on the CPU backend, spoken to over HTTP."""

import asyncio
import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import gallery
import pytest
from conftest import LIMITS, known_task

from data.records import SandboxError
from sandbox.pool import Pool, let_go
from sandbox.rewards.source import Service as Source
from sandbox.service import Service, read_items

for module in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(module, reason="extra `service` is not installed")

ROOT = pathlib.Path(__file__).parents[2]
TOKEN = "a token of the tests"
NAMES = ("relu", "zeros", "torch_wrapper", "not_python")


def item(name: str, **options) -> dict:
    """A gallery entry as an item of a batch."""
    entry = next(e for e in gallery.read("honest") + gallery.read("cheats") if e.name == name)
    plain = {"task": known_task(entry.task).to_dict(), "candidate": {"files": dict(entry.candidate().files)}}
    return plain | {"options": {"policy": entry.policy} | options}


class Running:
    """A service process with one slot and the limits of the other tests."""

    def __init__(self, folder: pathlib.Path, *options: str):
        let_go()
        (folder / "token").write_text(TOKEN + "\n")
        words = [f"--limit={name}={value}" for name, value in LIMITS.to_dict().items()]
        command = [sys.executable, "-m", "sandbox.judge", "serve", "--slots=1", f"--token-file={folder / 'token'}", *words, *options]
        with open(folder / "stderr", "w") as stderr:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
        line = self.process.stdout.readline()
        assert "http://127.0.0.1:" in line, (line, (folder / "stderr").read_text())
        self.port = int(line.split("http://127.0.0.1:")[1].split(",")[0])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)

    def ask(self, method: str, path: str, body=None, token: str = TOKEN) -> tuple[int, dict, str]:
        """Code, headers and text of one answer."""
        with contextlib.closing(self.connect()) as connection:
            text = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, text, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read().decode()

    def lines(self, batch: str, query: str = "") -> list[dict]:
        code, _, text = self.ask("GET", f"/v1/batches/{batch}/verdicts{query}")
        assert code == 200, text
        return [json.loads(line) for line in text.splitlines() if line]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Running(tmp_path_factory.mktemp("service"), "--queue=6", "--max-mb=0.1", "--canaries=1e-9")
    yield running
    running.kill()


def test_a_batch_has_the_verdicts_of_the_pool(tmp_path, service):
    code, _, text = service.ask("POST", "/v1/batches", {"items": [item(name) for name in NAMES]})
    assert code == 202, text
    found = {line["item"]: line["verdict"] for line in service.lines(json.loads(text)["batch"])}
    assert sorted(found) == [0, 1, 2, 3]

    async def judged():
        # Its own folder of leases: the service holds one of the user's slots, maybe the only one
        async with Pool(backend="cpp", limits=LIMITS, slots=1) as pool:
            entries = {e.name: e for e in gallery.read("honest") + gallery.read("cheats")}
            return [await pool.judge(known_task(entries[n].task), entries[n].candidate(), fresh=True, policy=entries[n].policy) for n in NAMES]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        pool = asyncio.run(judged())
    assert [(found[n]["status"], found[n]["rule"]) for n in range(4)] == [(v.status.value, v.rule) for v in pool]
    assert [found[n]["status"] for n in range(4)][:2] == ["correct", "incorrect"]
    assert [found[n]["candidate"] for n in range(4)] == [v.candidate for v in pool]


GOOD = {"task": {"source": "x = 1"}, "candidate": {"files": {"model_new.py": "x = 1"}}}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "body: got no JSON"),
        (b"[" * 50_000, "body: got no JSON"),
        ({"items": []}, "items: got none"),
        ({"items": [GOOD], "hurry": 1}, "unknown 'hurry'"),
        ({"items": [GOOD, GOOD | {"options": {"polcy": "mixed"}}]}, "items[1].options: got unknown 'polcy'"),
        ({"items": [GOOD | {"options": {"policy": "anything"}}]}, "items[0].options.policy: got 'anything'"),
        ({"items": [GOOD | {"options": {"fresh": 1}}]}, "items[0].options.fresh"),
        ({"items": [GOOD | {"options": {"backend": "cuda"}}]}, "wanted cpp"),
        ({"items": [GOOD | {"candidate": {"files": {}}}]}, "items[0].candidate.files"),
        ({"items": [GOOD | {"candidate": {"files": {"../model_new.py": "x"}}}]}, "items[0].candidate"),
        ({"items": [GOOD | {"task": {"source": 3}}]}, "items[0].task.source: got int"),
        ({"items": [GOOD | {"task": {"source": "x", "mode": "sideways"}}]}, "items[0].task"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_with_400_and_one_line(service, body, told):
    code, _, text = service.ask("POST", "/v1/batches", body)
    assert code == 400
    assert told in json.loads(text)["error"] and "\n" not in json.loads(text)["error"]


def test_who_may_ask_and_for_how_much(service):
    for method, path in (("POST", "/v1/batches"), ("GET", "/v1/batches/some-batch"), ("GET", "/metrics")):
        assert service.ask(method, path, {"items": [GOOD]} if method == "POST" else None, token="another")[0] == 401
    assert service.ask("POST", "/v1/batches", {"items": [GOOD | {"task": {"source": "#" * 200_000}}]})[0] == 413
    assert service.ask("POST", "/v1/batches", {"items": [GOOD] * 7})[0] == 413  # more than the queue holds
    assert service.ask("PUT", "/v1/batches/short", {"items": [GOOD]})[0] == 400
    assert service.ask("GET", "/v1/batches/no-such-batch")[0] == 404
    assert service.ask("GET", "/nowhere")[0] == 404


def test_a_full_queue_says_when_to_come_back_and_a_lost_client_loses_nothing(service):
    body = {"items": [item("sleeps_forever"), *[item("zeros")] * 3]}
    assert service.ask("PUT", "/v1/batches/batch-of-a-test", body)[0] == 202
    with contextlib.closing(service.connect()) as gone:
        gone.request("GET", "/v1/batches/batch-of-a-test/verdicts", headers={"Authorization": f"Bearer {TOKEN}"})
        gone.getresponse()
    code, headers, text = service.ask("POST", "/v1/batches", {"items": [item("zeros")] * 3})
    assert code == 429 and 1 <= int(headers["retry-after"]) <= 60, text
    # The same request again is the same batch; other items under its name are not
    assert service.ask("PUT", "/v1/batches/batch-of-a-test", body)[0] == 200
    assert service.ask("PUT", "/v1/batches/batch-of-a-test", {"items": [GOOD]})[0] == 409
    end = time.monotonic() + 40
    while json.loads(service.ask("GET", "/v1/batches/batch-of-a-test")[2])["state"] != "done":
        assert time.monotonic() < end
        time.sleep(0.1)
    lines = service.lines("batch-of-a-test")
    assert sorted((line["item"], line["verdict"]["status"]) for line in lines) == [(0, "timeout"), (1, "incorrect"), (2, "incorrect"), (3, "incorrect")]
    assert service.lines("batch-of-a-test", "?from=2&follow=0") == lines[2:]


def test_the_client_of_the_rewards_gets_the_verdicts_of_a_group(tmp_path, service):
    (tmp_path / "token").write_text(TOKEN)
    source = Source(f"http://127.0.0.1:{service.port}", token_file=tmp_path / "token", policy="mixed")
    entries = {e.name: e for e in gallery.read("honest") + gallery.read("cheats")}
    found = source.judge([(known_task(entries[name].task), entries[name].candidate()) for name in ("relu", "zeros")])
    assert [(v.status.value, v.policy) for v in found] == [("correct", "mixed"), ("incorrect", "mixed")]
    with pytest.raises(ValueError, match="got 401"):
        Source(f"http://127.0.0.1:{service.port}").judge([(known_task("relu"), entries["zeros"].candidate())])


def test_cancelled_items_get_an_error_and_the_others_their_verdict(service):
    assert service.ask("PUT", "/v1/batches/cancelled-batch", {"items": [item("zeros")] * 5})[0] == 202
    assert service.ask("DELETE", "/v1/batches/cancelled-batch")[0] == 200
    lines = service.lines("cancelled-batch")
    assert len(lines) == 5 and {line["error"]["kind"] for line in lines if "error" in line} == {"cancelled"}
    assert all(line["verdict"]["status"] == "incorrect" for line in lines if "verdict" in line)


def test_health_and_metrics_tell_what_happened(service):
    service.ask("PUT", "/v1/batches/counted-batch", {"items": [item("zeros")]})
    service.lines("counted-batch")
    code, _, text = service.ask("GET", "/health", token="none")
    assert code == 200 and json.loads(text) | {"status": "ok", "backend": "cpp", "slots": 1, "queued": 0} == json.loads(text)
    from prometheus_client.parser import text_string_to_metric_families

    code, _, text = service.ask("GET", "/metrics")
    values = {(s.name, *sorted(s.labels.values())): s.value for family in text_string_to_metric_families(text) for s in family.samples}
    assert values["cuda_judge_verdicts_total", "incorrect", "mixed"] >= 1
    assert values[("cuda_judge_sandbox_errors_total",)] == 0 == values[("cuda_judge_canary_alarm",)]
    assert values["cuda_judge_canaries_total", "cheat", "credited"] == 0
    assert {("cuda_judge_queued_items",), ("cuda_judge_slots_busy",), ("cuda_judge_cache_hits_total",)} <= set(values)


def test_after_a_term_signal_what_was_accepted_is_judged(tmp_path):
    running = Running(tmp_path)
    try:
        running.ask("PUT", "/v1/batches/last-batch", {"items": [item("sleeps_forever"), item("zeros")]})
        running.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 5
        while running.ask("GET", "/health")[0] != 503:
            assert time.monotonic() < end
        code, headers, _ = running.ask("POST", "/v1/batches", {"items": [GOOD]})
        assert code == 503 and int(headers["retry-after"]) >= 1
        assert {line["item"]: line["verdict"]["status"] for line in running.lines("last-batch")} == {0: "timeout", 1: "incorrect"}
        assert running.process.wait(20) == 0
    finally:
        running.kill()


def _processes_below(root: int) -> set[int]:
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return (found - {root}) & set(parents)


def _alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_service_leaves_no_process(tmp_path):
    running = Running(tmp_path)
    try:
        running.ask("PUT", "/v1/batches/killed-batch", {"items": [item("sleeps_forever")]})
        end = time.monotonic() + 20
        # zygote, judge, keepers of reference and candidate, and what these hold
        while len(below := _processes_below(running.process.pid)) < 4:
            assert time.monotonic() < end, below
            time.sleep(0.02)
    finally:
        os.kill(running.process.pid, signal.SIGKILL)
        running.kill()
    end = time.monotonic() + 10
    while left := {pid for pid in below if _alive(pid)}:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_failure_of_ours_is_an_error_of_its_item_and_no_verdict():
    class Failing(Pool):
        """A pool whose every second question fails on our side."""

        asked = 0

        async def _on_slot(self, task, work, **how):
            self.asked += 1
            if self.asked % 2 == 0:
                self.counts["sandbox_errors"] += 1
                raise SandboxError("the slot is gone")
            return await super()._on_slot(task, work, **how)

    async def run():
        let_go()
        async with Failing(backend="cpp", limits=LIMITS, slots=1) as pool:
            service = Service(pool)
            body = json.dumps({"items": [item("torch_wrapper"), item("torch_wrapper")]}).encode()
            batch, _ = service.submit("a-batch", body, read_items(body, backend="cpp", most=2))
            dispatcher = asyncio.create_task(service.dispatch())
            lines = [json.loads(line) async for line in service.lines(batch, 0, True) if line.strip()]
            dispatcher.cancel()
            return lines, service

    lines, service = asyncio.run(run())
    by_item = {line["item"]: line for line in lines}
    assert by_item[0]["verdict"]["status"] == "rejected"
    assert by_item[1]["error"] == {"kind": "sandbox", "status": 503, "message": "the slot is gone"} and "verdict" not in by_item[1]
    assert service.errors == {"sandbox": 1} and service.verdicts.total() == 1


def test_help_comes_at_once():
    took = []
    for _ in range(3):
        begin = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "sandbox.judge", "serve", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        took.append(time.monotonic() - begin)
    assert "--token-file" in done.stdout and min(took) < 1.0
    loaded = subprocess.run([sys.executable, "-c", "import sandbox.service, sys; print(*sys.modules)"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"torch", "uvicorn", "starlette"} & set(loaded.split())


@pytest.mark.parametrize(
    ("words", "told"), [(["--host=0.0.0.0"], "--token-file"), (["--limit=colour=3"], "--limit"), (["--canaries=2"], "--canaries"), (["--queue=0"], "--queue")]
)
def test_bad_options_of_the_command_are_one_line_and_exit_2(words, told):
    done = subprocess.run([sys.executable, "-m", "sandbox.judge", "serve", *words], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and told in done.stderr and len(done.stderr.splitlines()) == 1
