from __future__ import annotations

import collections
import http.server
import json
import math
import re
import subprocess
import sys
import threading
from random import Random

import pytest

from data.composers import Grammar, LanguageModel, harmless
from data.operators import FAMILIES
from data.regimes import REGIME_NAMES
from data.seeds import run_source
from data.synthesis import PUBLISHED_MIX, synthesize
from data.trace import trace

OPTIONS = {"families": [*FAMILIES, "torch"], "regimes": list(REGIME_NAMES), "max_elements": 1 << 15}
MIX = {1: 0.2, 2: 0.3, 3: 0.2, 4: 0.2, 5: 0.1}


@pytest.fixture(scope="module")
def tasks():
    return synthesize(count=120, seed=2, mix=MIX, bf16=0.1, **OPTIONS)


def test_compositions_hold_seeds_of_many_families_in_every_regime_and_their_labels_are_traced(tasks):
    assert len({t.id for t in tasks}) == 120
    count = collections.Counter(t.regime for t in tasks)
    assert set(count) == set(REGIME_NAMES) and max(count.values()) - min(count.values()) <= 1
    for task in tasks:
        graph = trace(task.source)
        assert graph.operators == task.operators
        assert math.prod(graph.inputs[0].shape) <= 1 << 15
    assert len({op for t in tasks for op in t.operators}) > 80


def test_compositions_run_with_finite_outputs_that_depend_on_their_inputs(tasks):
    import torch

    constant = []
    for task in tasks[:60]:
        first, second = (run_source(task.source, seed)[0] for seed in (1, 2))
        assert torch.isfinite(first).all(), task.source
        if float((first - second).abs().max()) <= 1e-4 * float(first.abs().max()):
            constant.append(task.operators)
    assert len(constant) <= 3, constant


def test_convolutions_stay_under_their_share_and_bf16_meets_it(tasks):
    def convolved(made):
        return sum(any("convolution" in op for op in t.operators) for t in made)

    assert convolved(tasks) <= 12
    assert sum(t.precision == "bf16" for t in tasks) == sum('PRECISION = "bf16"' in t.source for t in tasks) == 12
    only = {**OPTIONS, "families": ["torch.convolution", "torch.pointwise"]}
    assert convolved(synthesize(count=20, seed=0, mix={1: 1.0}, convolutions=0.0, **only)) == 0
    assert 0 < convolved(synthesize(count=20, seed=0, mix={1: 1.0}, convolutions=0.5, **only)) <= 10


def test_a_published_share_of_the_tasks_are_modules_of_transformers():
    options = {**OPTIONS, "families": ["torch.pointwise", "transformers.mlp"], "min_elements": 1 << 13}
    made = synthesize(count=40, seed=1, mix=PUBLISHED_MIX, transformers=0.05, **options)
    assert sum("from transformers." in t.source for t in made) == 2


def test_the_same_seed_composes_the_same_tasks_in_another_process():
    code = f"from data.synthesis import *; print([t.id for t in synthesize(count=15, seed=4, mix={MIX}, **{OPTIONS})])"
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True).stdout
    assert eval(out) == [t.id for t in synthesize(count=15, seed=4, mix=MIX, **OPTIONS)]


# --------------------------------------------------------------------------------- language model


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers as a chat model that writes what it is asked for, or what the test wants."""

    writer = staticmethod(lambda prompt: "")
    seen: list = []  # noqa: RUF012

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append((self.path, self.headers.get("Authorization"), asked))
        text = type(self).writer(asked["messages"][0]["content"])
        code, body = (200, {"choices": [{"message": {"content": text}}]}) if text is not None else (429, {"error": "slow down"})
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def endpoint():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Endpoint.seen = []
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def written(prompt: str) -> str:
    """A task as a model would answer: the shape and operators are read from the prompt."""
    import torch

    shape = re.search(r"shape (\([\d, ]+\))", prompt)[1]
    names = re.search(r"shape \([\d, ]+\): ([\w, ]+)\.", prompt)[1].split(", ")
    body = "\n".join(f"        x = {'torch' if hasattr(torch, name) else 'F'}.{name}(x)" for name in names)
    return f"""Here it is.
```python
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, x):
{body}
        return x

def get_inputs():
    return [torch.randn{shape}]

def get_init_inputs():
    return []
```"""


def test_a_language_model_composes_behind_the_same_interface(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    monkeypatch.setattr(Endpoint, "writer", staticmethod(written))
    families = ["activation", "math"]
    composer = LanguageModel(endpoint, "some-model", families)
    options = {"families": families, "regimes": ["square", "tall", "odd"], "max_elements": 1 << 14}
    made = synthesize(count=6, seed=0, mix={2: 1.0}, composer=composer, **options)
    assert len(made) == 6 and all(t.operators == trace(t.source).operators and len(t.operators) >= 2 for t in made)
    path, key, asked = Endpoint.seen[0]
    assert (path, key, asked["model"]) == ("/v1/chat/completions", "Bearer sk-of-the-test", "some-model")
    assert not any("sk-of-the-test" in t.source for t in made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("import torch.nn as", "import os, torch.nn as"), "got os, wanted only torch"),
        (lambda text: text.replace("return x", "return torch.load('x')"), "got load, wanted only torch"),
        (lambda text: re.sub(r"x = \w+\.\w+\(x\)", "x = x * 2", text), "wanted ("),
        (lambda text: text.replace("torch.randn(", "torch.randn(2, "), "refused: got"),
        (lambda text: "I would rather not.", "wanted Python"),
    ],
)
def test_what_a_language_model_gets_wrong_is_refused_with_the_reason(endpoint, monkeypatch, caplog, change, said):
    monkeypatch.setattr(Endpoint, "writer", staticmethod(lambda prompt: change(written(prompt))))
    composer = LanguageModel(endpoint, "m", ["activation"], key_from="")
    with caplog.at_level("INFO"):
        while not Endpoint.seen:
            assert composer.compose(Random(3), 1, "square", (1 << 12, 1 << 13)) is None
    assert said in caplog.text and Endpoint.seen[0][1] is None


def test_an_endpoint_that_refuses_or_a_missing_key_is_one_clear_line(endpoint, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ValueError, match="NO_SUCH_KEY: got nothing in the environment, wanted the key of http"):
        LanguageModel(endpoint, "m", ["activation"], key_from="NO_SUCH_KEY")
    with pytest.raises(ValueError, match="address: got 'ftp://x', wanted http"):
        LanguageModel("ftp://x", "m", ["activation"], key_from="")
    monkeypatch.setattr(Endpoint, "writer", staticmethod(lambda prompt: None))
    with pytest.raises(OSError, match=r"got 429 .*slow down.*, wanted a chat completion"):
        LanguageModel(endpoint, "m", ["activation"], key_from="", retry_s=0.001).ask("hello", seed=0)
    assert len(Endpoint.seen) == 4
    answers = iter([None, "there"])
    monkeypatch.setattr(Endpoint, "writer", staticmethod(lambda prompt: next(answers)))
    assert LanguageModel(endpoint, "m", ["activation"], key_from="", retry_s=0.001).ask("hello", seed=0) == "there"
    with pytest.raises(OSError, match=r"127.0.0.1:9/v1: got .*, wanted a chat completion"):
        LanguageModel("http://127.0.0.1:9/v1", "m", ["activation"], key_from="", retry_s=0.001).ask("hello", seed=0)


def test_sources_that_reach_outside_are_refused_and_plain_ones_are_not():
    assert harmless("import torch\nimport math\n") == "import torch\nimport math\n"
    for text in (
        "import os",
        "from torch import hub",
        "import torch\ntorch.ops.x",
        "().__class__",
        "eval('1')",
        "from . import x",
        "def f(:",
    ):
        with pytest.raises(ValueError, match="got"):
            harmless(text)


def test_unknown_families_are_refused_by_the_grammar_too():
    with pytest.raises(ValueError, match="families: got"):
        Grammar(["no.such"])
    with pytest.raises(ValueError, match=r"families: got \['torch.nothing'\], wanted some of activation"):
        synthesize(count=1, seed=0, mix={1: 1}, families=["torch.nothing"], regimes=["square"], max_elements=1 << 15)
    with pytest.raises(ValueError, match="convolutions: got 2, wanted a share"):
        synthesize(count=1, seed=0, mix={1: 1}, convolutions=2, **OPTIONS)
