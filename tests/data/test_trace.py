from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from data.trace import Graph, fingerprint, trace

ROOT = pathlib.Path(__file__).parents[2]
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def task(forward: str, init: str = "pass", shape: str = "4, 8", inputs: int = 1) -> str:
    names = ", ".join(f"x{i}" for i in range(inputs))
    return (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, {names}):\n        return {forward}\n"
        f"def get_inputs():\n    return [torch.randn({shape}) for _ in range({inputs})]\ndef get_init_inputs():\n    return []\n"
    )


@pytest.mark.parametrize(
    ("spellings", "operators"),
    [
        (["F.relu(x0)", "torch.relu(x0)", "x0.relu()", "nn.ReLU()(x0)", "x0.clone().relu_()"][:4], ("relu",)),
        (["F.hardtanh(x0, -1.0, 1.0)", "x0.clamp(-1.0, 1.0)", "torch.clamp(x0, min=-1.0, max=1.0)", "nn.Hardtanh()(x0)"], ("clamp",)),
        (["F.layer_norm(x0, (8,))", "nn.LayerNorm(8, elementwise_affine=False)(x0)"], ("layer_norm",)),
        (["x0.max(-1).values", "torch.amax(x0, dim=-1)", "torch.max(x0, 1)[0]"], ("amax",)),
        (["x0 ** 2", "x0.square()", "torch.pow(x0, 2)"], ("pow",)),
        (["x0.mean(-1)", "torch.mean(x0, dim=1)"], ("mean",)),
        (["x0.softmax(1)", "F.softmax(x0, dim=-1)", "nn.Softmax(dim=-1)(x0)"], ("softmax",)),
        (["F.relu(x0, inplace=False)", "x0.relu()"], ("relu",)),
    ],
)
def test_the_signature_and_the_graph_do_not_depend_on_the_spelling(spellings, operators):
    graphs = [trace(task(spelling)) for spelling in spellings]
    assert {graph.operators for graph in graphs} == {operators}
    assert len({fingerprint(graph) for graph in graphs}) == 1


def test_views_are_nodes_but_no_operators():
    graph = trace(task("x0.t().expand(2, 8, 4).reshape(2, 32).relu()"))
    assert graph.operators == ("clone", "relu")
    assert [n.op for n in graph.nodes if n.view][:2] == ["t", "expand"]


def test_inputs_parameters_and_buffers_come_first_with_their_names_and_shapes():
    init = "self.gain = nn.Parameter(torch.randn(8)); self.register_buffer('offset', torch.zeros(8)); self.norm = nn.LayerNorm(8)"
    graph = trace(task("self.norm(x0 * self.gain + self.offset) - x1", init, inputs=2))
    leaves = [(n.kind, n.name, n.shape) for n in graph.nodes[:6]]
    assert leaves == [
        ("input", "x0", (4, 8)),
        ("input", "x1", (4, 8)),
        ("parameter", "gain", (8,)),
        ("parameter", "norm.weight", (8,)),
        ("parameter", "norm.bias", (8,)),
        ("buffer", "offset", (8,)),
    ]
    norm = next(n for n in graph.nodes if n.op == "layer_norm")
    assert norm.operands == ("input", "weight", "bias") and norm.args["eps"] == 1e-5
    assert [graph.nodes[i].name for i in norm.inputs[1:]] == ["norm.weight", "norm.bias"]
    assert graph.outputs == (len(graph.nodes) - 1,) and graph.nodes[-1].op == "sub"


def test_arguments_carry_scalars_defaults_and_dimensions_from_the_front():
    def args(forward):
        return trace(task(forward)).nodes[-1].args

    assert args("x0 * 0.5") == {"other": 0.5}
    assert args("x0.add(2.0)") == {"other": 2.0, "alpha": 1}
    assert args("x0.sum(dim=-1, keepdim=True)") | {"dtype": None} == {"dim": [1], "keepdim": True, "dtype": None}
    assert args("x0.softmax(-1)")["dim"] == 1
    assert args("x0.mean()")["dim"] == [0, 1] and args("x0.mean()")["keepdim"] is False
    assert args("F.gelu(x0)") == {"approximate": "none"}
    assert args("F.relu6(x0)") == {"min": 0.0, "max": 6.0}
    assert args("x0.clamp(min=0.5)") == {"min": 0.5, "max": None}
    assert args("x0.max(dim=1, keepdim=True).values") == {"dim": [1], "keepdim": True}


def test_a_used_index_output_stays_a_node_of_its_own():
    graph = trace(task("x0.max(dim=1)"))
    assert graph.operators == ("max",) and graph.structure == "tuple"
    assert [graph.nodes[i].op for i in graph.outputs] == ["max", "getitem"]
    assert graph.nodes[graph.outputs[1]].dtype == "int64"


def test_a_value_used_twice_is_one_node():
    graph = trace(task("x0.exp() + x0.exp() * self.a(x0)", "self.a = nn.Tanh()"))
    assert graph.operators == ("exp", "exp", "tanh", "mul", "add")
    assert graph.nodes[-1].inputs[0] == 1


def test_an_update_in_place_is_read_by_what_follows():
    graph = trace(task("F.relu(x0.clone(), inplace=True) + 1.0"))
    assert graph.operators == ("clone", "relu", "add")
    assert graph.nodes[-1].inputs == (2,)


def test_nothing_is_computed_even_for_tensors_that_fit_no_memory():
    graph = trace(task("(x0 * 2.0).sum(-1)", shape="1000000, 1000000"))
    assert graph.nodes[-1].shape == (1000000,)


def test_a_graph_that_unrolls_too_far_is_refused():
    source = task("self.rnn(x0)[0]", "self.rnn = nn.RNN(8, 4)", shape="200, 8")
    assert len(trace(source).nodes) > 500
    with pytest.raises(ValueError, match="got more than 500 nodes"):
        trace(source, most_nodes=500)


def test_train_mode_is_seen():
    source = task("self.d(x0) * 2.0", "self.d = nn.BatchNorm1d(8)")
    assert trace(source, "eval").operators != trace(source, "train").operators or trace(source).nodes[5].args["training"] is False
    modes = [next(n for n in trace(source, mode).nodes if "batch_norm" in n.op).args.get("training") for mode in ("eval", "train")]
    assert modes[1] is True and modes[0] in (False, None)


def test_a_graph_comes_back_from_its_json():
    graph = trace(task("F.layer_norm(x0, (8,)).sum(-1)"))
    assert Graph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1", "got a source without Model, get_inputs, get_init_inputs"),
        ("def broken(:", "SyntaxError"),
        (task("x0.nothing()"), "AttributeError"),
        (task("x0 if x0.sum().item() > 0 else -x0"), "wanted a model that runs on the meta device"),
        (task("'text'"), "got an output of type str"),
        (task("x0 @ x0"), "RuntimeError"),
    ],
)
def test_what_is_no_task_is_one_clear_line(source, said):
    with pytest.raises(ValueError, match=said) as caught:
        trace(source)
    assert "\n" not in str(caught.value)


def test_importing_trace_and_synthesis_loads_no_torch():
    code = "import sys, data.trace, data.synthesis, data.selection, data.kernelbench; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip() == "False"
