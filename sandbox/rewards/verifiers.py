"""The judge as a task set of verifiers (0.4). The library takes task sets from top-level modules, so name yours in one of two lines:

    from sandbox.rewards.verifiers import KernelTaskset
    __all__ = ["KernelTaskset"]

Saved as kernels.py: vf-eval kernels --env.taskset.tasks tasks.jsonl --env.taskset.task.reward policy.reward:robust
--env.taskset.task.service http://judge:8080. A line of tasks.jsonl is a Task as JSON, at least its `source`.
"""

from __future__ import annotations

import functools
import pathlib
import pkgutil
from collections.abc import Iterator

import verifiers.v1 as vf

from data.records import SandboxError
from sandbox.rewards.source import as_candidate, as_task, source

_source = functools.cache(source)
PROMPT = """Write a faster module with the same outputs as `Model`. Give `class ModelNew(torch.nn.Module)` in a fenced block that begins with
```python model_new.py and each kernel file in one that begins with its path, for example ```cpp kernels/kernel.cpp

```python
{source}
```"""


class KernelConfig(vf.TaskConfig):
    """How a reply is judged and what its verdict is worth."""

    reward: str = ""
    """"module:function" of a verdict, for example policy.reward:robust."""
    service: str | None = None
    """Address of `cuda-judge serve`; None takes slots of this machine."""
    token_file: str | None = None
    backend: str = "cpp"
    """Of slots of this machine; a service has its own."""
    policy: str = "libraries_allowed"


class KernelData(vf.TaskData):
    kernel_task: str
    """The task to judge by: its source, or a Task as JSON."""


class KernelTask(vf.Task[KernelData, vf.State, KernelConfig]):
    @vf.reward
    async def verdict(self, trace: vf.Trace) -> float:
        """The reward of the agent's last reply; its verdict goes into the trace's info.

        Raises vf.SandboxError where we failed and ValueError for a task that cannot be judged: verifiers records an error and no reward.
        """
        if not self.config.reward:
            raise ValueError("config: got no reward, wanted --env.taskset.task.reward MODULE:FUNCTION")
        chosen = (
            {"service": self.config.service, "token_file": self.config.token_file}
            if self.config.service
            else {"backend": self.config.backend}
        )
        pair = as_task(self.data.kernel_task), as_candidate(trace.last_reply)
        (found,) = await _source(**chosen, policy=self.config.policy).judge_async([pair])
        if isinstance(found, SandboxError):
            raise vf.SandboxError(str(found)) from found
        trace.info["verdict"] = found.to_dict()
        worth = pkgutil.resolve_name(self.config.reward)(found)
        if worth is None:
            raise ValueError(f"task {found.task}: got {found.status.value} ({found.reason}), wanted tasks that can be judged")
        return worth


class KernelTasksetConfig(vf.TasksetConfig):
    task: KernelConfig = KernelConfig()
    tasks: pathlib.Path = pathlib.Path("tasks.jsonl")


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    def load(self) -> Iterator[KernelTask]:
        """A task a line of `tasks`. Raises ValueError for a line that is none."""
        for line in filter(str.strip, self.config.tasks.read_text().splitlines()):
            yield KernelTask(KernelData(kernel_task=line, prompt=PROMPT.format(source=as_task(line).source)), self.config.task)


__all__ = ["KernelTaskset"]
