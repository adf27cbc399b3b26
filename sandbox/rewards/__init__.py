"""The judge as a reward of other trainers: `trl`, `verl` and `verifiers`, each over a service or over a pool of this process.

What a verdict is worth is the caller's to pass in (`policy.reward.robust` is this project's definition): sandbox knows verdicts only.
Nothing here imports torch before a local pool starts, and none of the three libraries is a dependency of ours.
"""
