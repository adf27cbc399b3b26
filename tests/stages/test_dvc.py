"""dvc.yaml is the one DAG: it names every stage, param and dep that counts, and a change reruns what it must and no more."""

import dataclasses
import functools
import importlib.util
import pathlib
import time

import grimp
import pytest
import yaml

from stages import params, plan

ROOT = pathlib.Path(__file__).parents[2]
NODES = plan.read(ROOT)
GUARD = {"stages", "stages.stage", "stages.params", "stages.plan"}
"""The guard and the readers of params: they decide whether a stage runs, not what it makes."""


@functools.cache
def graph():
    return grimp.build_graph("data", "sandbox", "policy", "stages", "flows", cache_dir=None)


def test_every_stage_is_a_module_and_a_section_of_the_same_name():
    for name in {node.stage for node in NODES.values()}:
        assert importlib.util.find_spec(f"stages.{name}"), name
        assert name in {field.name for field in dataclasses.fields(params.Params)}, name
        assert all(node.cmd.split()[:3] == ["python", "-m", f"stages.{name}"] for node in NODES.values() if node.stage == name)


def test_this_reading_of_dvc_yaml_agrees_with_dvc(reproduced):
    from dvc.repo import Repo

    with Repo(str(reproduced.path)) as repo:
        theirs = {stage.name: stage for stage in repo.index.stages}
        assert set(theirs) == set(NODES)
        for name, stage in theirs.items():
            root = reproduced.path
            files = {pathlib.Path(dep.fs_path).relative_to(root).as_posix() for dep in stage.deps if not dep.def_path.endswith("params.yaml")}
            assert files == set(NODES[name].deps), name
            assert {pathlib.Path(out.fs_path).relative_to(root).as_posix() for out in stage.outs} == set(NODES[name].outs), name
            assert stage.cmd.replace("toy.py ", "-m stages.") == NODES[name].cmd
            keys = {key for dep in stage.deps if dep.def_path.endswith("params.yaml") for key in dep.params}
            assert keys == set(NODES[name].params), name


def test_listed_params_exist_and_sections_are_listed_whole():
    values = yaml.safe_load((ROOT / "params.yaml").read_text())
    for node in NODES.values():
        for path in node.params:
            plan._lookup(values, path)
        assert node.stage in {path.partition(".")[0] for path in node.params}, node.name
    listed = {path.partition(".")[2] for path in NODES["evaluate@base"].params if path.startswith("evaluate.")}
    # The list of checkpoints decides which stages there are, not what one of them finds.
    assert listed == {field.name for field in dataclasses.fields(params.Evaluate)} - {"checkpoints"}


def ignored() -> list[str]:
    return [line.strip("/") for line in (ROOT / ".dvcignore").read_text().splitlines() if line.startswith("/")]


@pytest.mark.parametrize("stage", sorted({node.stage for node in NODES.values()} - {"report"}))
def test_deps_cover_everything_of_ours_that_a_stage_imports(stage):
    node = next(node for node in NODES.values() if node.stage == stage)
    for module in sorted(graph().find_upstream_modules(f"stages.{stage}") | {f"stages.{stage}"}):
        if module in GUARD or not importlib.util.find_spec(module).origin:
            continue
        file = pathlib.Path(importlib.util.find_spec(module).origin).relative_to(ROOT).as_posix()
        assert any(file == dep or file.startswith(dep + "/") for dep in node.deps), f"{node.name} imports {file}"
        assert not any(file == skip or file.startswith(skip + "/") for skip in ignored()), f"{file} is in .dvcignore"


def test_a_stage_needs_neither_dvc_nor_prefect_nor_mlflow_nor_duckdb():
    outside = grimp.build_graph("data", "sandbox", "policy", "stages", include_external_packages=True, cache_dir=None)
    for stage in {node.stage for node in NODES.values()}:
        found = outside.find_upstream_modules(f"stages.{stage}")
        assert not found & {"dvc", "prefect", "mlflow", "duckdb"} or stage == "report", stage


def test_a_second_repro_runs_nothing_and_is_quick(toy_repo):
    started = time.monotonic()
    done = toy_repo.dvc("repro")
    assert done.returncode == 0 and not toy_repo.ran()
    assert time.monotonic() - started < 6


def test_another_evaluate_parameter_reruns_evaluation_and_report_only(toy_repo):
    toy_repo.edit("params.yaml", "  samples: 4\n  seed: 9", "  samples: 5\n  seed: 9")
    assert toy_repo.dvc("repro").returncode == 0
    assert set(toy_repo.ran()) == {name for name in NODES if name.startswith("evaluate@")} | {"report"}


def test_another_round_runs_only_that_round_and_what_follows(toy_repo):
    toy_repo.edit("params.yaml", "  r02: {prev: r01}\n", "  r02: {prev: r01}\n  r03: {prev: r02}\n")
    toy_repo.edit("params.yaml", "rft, r01, r02]", "rft, r01, r02, r03]")
    assert toy_repo.dvc("repro").returncode == 0
    assert set(toy_repo.ran()) == {"rollout@r03", "update@r03", "evaluate@r03", "report"}


def test_code_that_makes_no_result_reruns_nothing(toy_repo):
    (toy_repo.path / "policy/registry.py").write_text("x = 2\n")
    (toy_repo.path / "stages/track.py").write_text("x = 2\n")
    (toy_repo.path / "data/__pycache__").mkdir()
    (toy_repo.path / "data/__pycache__/code.pyc").write_text("x")
    toy_repo.edit("params.yaml", "  sampler_batch: 64", "  sampler_batch: 32")
    assert toy_repo.dvc("repro").returncode == 0 and not toy_repo.ran()


def test_a_stage_that_fails_leaves_the_others_results_and_says_which(toy_repo):
    (toy_repo.path / "fail").write_text("critic")
    toy_repo.edit("params.yaml", "critic:\n  seed: 6", "critic:\n  seed: 66")
    done = toy_repo.dvc("repro")
    assert done.returncode != 0 and "critic" in done.stderr
    (toy_repo.path / "fail").unlink()
    assert toy_repo.dvc("repro").returncode == 0 and toy_repo.ran()[0] == "critic"
