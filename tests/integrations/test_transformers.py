"""metalops.integrations.transformers: tiny models of Hugging Face's transformers with random weights."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from metalops.integrations import transformers as integration  # noqa: E402

TINY = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = {**TINY, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))


def gemma():
    """Softcap, and a window of 4 in every other layer."""
    config = transformers.Gemma2Config(
        **GROUPED, sliding_window=4, attn_logit_softcapping=2.0, query_pre_attn_scalar=8
    )
    return transformers.Gemma2ForCausalLM(config)


def gpt_oss():
    """Sinks, and a window of 4 in every other layer."""
    config = transformers.GptOssConfig(
        **GROUPED, sliding_window=4, num_local_experts=2, num_experts_per_tok=1
    )
    model = transformers.GptOssForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**TINY))


MODELS = {"llama": llama, "gemma 2": gemma, "gpt-oss": gpt_oss, "bert": bert}


@pytest.fixture(scope="module", autouse=True)
def enabled():
    integration.enable()
    integration.enable()


@pytest.fixture(params=MODELS)
def models(request):
    """On the CPU with torch's operators, and on the device with ours."""
    torch.manual_seed(0)
    reference = MODELS[request.param]().eval()
    reference.set_attn_implementation("eager")
    model = copy.deepcopy(reference).to("mps")
    model.set_attn_implementation("metalops")
    return reference, model


class _Calls(TorchDispatchMode):
    """How often our operator is called."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function._schema.name == "metalops::attention_forward"
        return function(*args, **(kwargs or {}))


def tokens(*shape):
    return torch.randint(1, 50, shape)


@torch.no_grad()
def check(models, **inputs):
    reference, model = models
    expected = reference(**inputs).logits
    with _Calls() as calls:
        actual = model(**{name: x.to("mps") for name, x in inputs.items()}).logits
    assert calls.count == 2
    chosen = inputs.get("attention_mask", torch.ones(expected.shape[:2])).bool()
    torch.testing.assert_close(actual.cpu()[chosen], expected[chosen], rtol=1e-3, atol=1e-4)


def test_logits(models):
    check(models, input_ids=tokens(2, 11))


def test_logits_of_padded_sequences(models):
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, :4] = 0
    check(models, input_ids=tokens(2, 11), attention_mask=mask)


def test_gradients(models):
    reference, model = models
    inputs = tokens(2, 11)
    reference(input_ids=inputs, labels=inputs).loss.backward()
    inputs = inputs.to("mps")
    model(input_ids=inputs, labels=inputs).loss.backward()
    for (name, a), e in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (a.grad is None) == (e.grad is None), name
        if e.grad is not None:
            torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-2, atol=1e-4, msg=name)


@pytest.mark.parametrize("models", ["llama", "gemma 2", "gpt-oss"], indirect=True)
def test_tokens_that_are_generated_with_a_cache(models):
    reference, model = models
    prompt = tokens(2, 5)
    options = {"max_new_tokens": 8, "do_sample": False}
    expected = reference.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    prompt = prompt.to("mps")
    actual = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    assert actual.tolist() == expected.tolist()


def test_a_bias_of_positions_is_added():
    query, key, value = (torch.randn(1, 2, n, 8).to("mps") for n in (5, 7, 7))
    bias = torch.randn(1, 2, 5, 7).to("mps")
    mask = (torch.rand(1, 1, 5, 7) < 0.7).to("mps")
    module = torch.nn.Module()
    for given in (None, mask, torch.randn(1, 1, 5, 7).to("mps")):
        actual, weights = integration.attention(
            module, query, key, value, given, is_causal=False, position_bias=bias
        )
        added = bias if given is None else bias + given
        if given is mask:
            added = bias.masked_fill(~mask, -torch.inf)
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, added)
        torch.testing.assert_close(actual, expected.transpose(1, 2), rtol=1e-4, atol=1e-5)
        assert weights is None
