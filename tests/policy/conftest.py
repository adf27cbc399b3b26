import pytest

TEXTS = [
    "import torch\nclass Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x) + 0.5\n",
    'extern "C" void relu(const float* x, float* y, long long n) { for (long long i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : 0; }',
    "system user assistant tool",
]


@pytest.fixture(scope="session")
def tokenizer():
    from policy import model

    return model.train_tokenizer(TEXTS, 300)


@pytest.fixture(scope="session")
def small(tokenizer, tmp_path_factory):
    """Folder of an untrained 60k-parameter policy with weights large enough that its distribution is not flat."""
    return make(tokenizer, tmp_path_factory.mktemp("small") / "policy", seed=0)


def make(tokenizer, path, *, seed, **shape):
    import torch

    from policy import model

    lm = model.create(
        tokenizer, seed=seed, **({"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 64, "context": 512} | shape)
    )
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)
    model.save(lm, tokenizer, path, parent=None, kind="base")
    return path
