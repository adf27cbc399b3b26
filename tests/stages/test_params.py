"""A wrong params.yaml is one line that names the key, what was got and what was wanted; nothing else can be read."""

import dataclasses
import pathlib
import subprocess
import sys
import typing

import pytest
import yaml

from stages import params, preset

ROOT = pathlib.Path(__file__).parents[2]
TINY = yaml.safe_load((ROOT / "params.yaml").read_text())


def written(tmp_path, change):
    values = yaml.safe_load((ROOT / "stages/presets/tiny.yaml").read_text())
    change(values)
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_the_file_in_the_repository_is_the_tiny_preset():
    tracked = subprocess.run(["git", "show", "HEAD:params.yaml"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("no git repository here")
    assert tracked.stdout == (ROOT / "stages/presets/tiny.yaml").read_text(), "cp params.yaml stages/presets/tiny.yaml"
    assert params.load(ROOT / "stages/presets/tiny.yaml").judge.backend == "cpp"


@pytest.mark.parametrize("name", preset.names())
def test_every_preset_loads_and_keeps_comments(tmp_path, name):
    (tmp_path / "params.yaml").write_text(preset.text(name))
    checked = params.load(tmp_path / "params.yaml")
    assert checked.rounds["r02"].prev == "r01"
    assert "not tracked by DVC" in preset.text(name)
    if name != "tiny":
        overrides = yaml.safe_load((ROOT / f"stages/presets/{name}.yaml").read_text())
        for section, values in overrides.items():
            for key, value in values.items():
                got = getattr(getattr(checked, section), key)
                assert (list(got) if isinstance(got, tuple) else got) == value


@pytest.mark.parametrize(
    ("change", "key", "got", "wanted"),
    [
        (lambda v: v["update"].update(learning_rate=1), "update.learning_rate", "1", "only the keys"),
        (lambda v: v["judge"].update(calls=23), "judge.calls", "23", "24 or more"),
        (lambda v: v.update(extra={}), "extra", "{}", "only the keys"),
        (lambda v: v["model"].update(hidden="lots"), "model.hidden", "'lots'", "a whole number"),
        (lambda v: v["model"].update(hidden=True), "model.hidden", "True", "a whole number"),
        (lambda v: v["model"].update(hidden=190), "model.hidden", "190", "a multiple"),
        (lambda v: v["model"].update(path=3), "model.path", "3", "text"),
        (lambda v: v["update"].update(lr="fast"), "update.lr", "'fast'", "a number"),
        (lambda v: v["update"].update(lr=float("nan")), "update.lr", "nan", "a finite number"),
        (lambda v: v["update"].update(lr=-1.0), "update.lr", "-1.0", "zero or more"),
        (lambda v: v["judge"].update(backend="tpu"), "judge.backend", "'tpu'", "cpp or cuda"),
        (lambda v: v["synthesize"].update(families="math"), "synthesize.families", "'math'", "a list"),
        (lambda v: v["synthesize"].update(mix={1: 0.5}), "synthesize.mix", "{1: 0.5}", "add up to 1"),
        (lambda v: v["rft"].pop("lr"), "rft.lr", "nothing", "a value"),
        (lambda v: v.pop("rft"), "rft", "nothing", "a value"),
        (lambda v: v["rounds"].update(r03={"prev": "r09"}), "rounds.r03.prev", "'r09'", "rft or r01 or r02"),
        (lambda v: v["rounds"].update(last={"prev": "rft"}), "rounds.last", "'last'", "a name like r01"),
        (lambda v: v["rounds"].update(r03={"prev": "r02"}), "evaluate.checkpoints", "['base'", "also r03"),
        (lambda v: v["evaluate"].update(checkpoints=["base", "r7"]), "evaluate.checkpoints[1]", "'r7'", "base or"),
    ],
)
def test_a_mistake_is_one_line_with_key_got_and_wanted(tmp_path, change, key, got, wanted):
    with pytest.raises(ValueError) as caught:
        params.load(written(tmp_path, change))
    line = str(caught.value)
    assert key in line and f"got {got}" in line and wanted in line and "\n" not in line


def test_the_command_line_exits_two_with_one_line(tmp_path):
    path = written(tmp_path, lambda v: v["update"].update(learning_rate=1))
    done = subprocess.run([sys.executable, "-m", "stages.params", str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "learning_rate" in done.stderr and not done.stdout
    for content in ("[1, 2", None):
        path.unlink(missing_ok=True)
        if content:
            path.write_text(content)
        done = subprocess.run([sys.executable, "-m", "stages.params", str(path)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_what_trains_is_told_so_by_the_same_record():
    sections = {name: hint for name, hint in typing.get_type_hints(params.Params).items() if isinstance(hint, type)}
    keys = {name: {field.name: field.type for field in dataclasses.fields(hint)} for name, hint in sections.items() if dataclasses.is_dataclass(hint)}
    trained = {name for name, hint in sections.items() if issubclass(hint, params.Training)}
    assert trained == {name for name in keys if "lr" in keys[name]} == {"warm_start", "single_turn", "rft", "critic", "update"}
    assert {name for name in trained if keys[name]["epochs"] == "int"} == {name for name in trained if "critic_lr" in keys[name]} == {"single_turn", "update"}
    assert all(set(keys[name]) == set(TINY[name]) for name in trained)


def test_numbers_that_yaml_reads_as_text_are_floats(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text().replace("critic_lr: 3.0e-4", "critic_lr: 3e-4"))
    assert isinstance(yaml.safe_load(path.read_text())["update"]["critic_lr"], str)
    assert params.load(path).update.critic_lr == pytest.approx(3e-4)
