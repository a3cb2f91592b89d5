# SPDX-License-Identifier: BSD-3-Clause
"""Hugging Face transformers on npusim: small models from their configurations, random tokens."""

import importlib
import sys

import pytest
import torch
import transformers
from accelerate.state import PartialState
from small_models import NO_DROPOUT, of_transformers

from torch_npusim.integrations import accelerate as npusim_accelerate
from torch_npusim.integrations import transformers as npusim_transformers

pytestmark = [
    pytest.mark.usefixtures("fresh_accelerate"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]


def llama(**changes):
    transformers.set_seed(3)
    small = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**small | changes))


def bert():
    transformers.set_seed(3)
    more = {"vocab_size": 128, **NO_DROPOUT}
    return of_transformers("Bert", "ForSequenceClassification", 32, 64, 2, 4, **more)


def tokens(label):
    """Returns 16 random sequences of 12 tokens, with what the model is to learn from each."""
    ids = torch.randint(0, 128, (16, 12), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": label(row)} for row in ids]


NEXT_TOKEN = tokens(lambda row: row)
PARITY = tokens(lambda row: row[0] % 2)


def trainer(folder, model, data=NEXT_TOKEN, callbacks=(), **settings):
    fixed = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    arguments = transformers.TrainingArguments(output_dir=str(folder), **fixed | settings)
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=data, callbacks=list(callbacks)
    )


def losses(trained):
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    ("model", "data", "settings"),
    [
        (llama, NEXT_TOKEN, {}),
        (llama, NEXT_TOKEN, {"gradient_accumulation_steps": 2}),
        (llama, NEXT_TOKEN, {"gradient_checkpointing": True}),
        (bert, PARITY, {"optim": "adamw_torch_fused"}),
    ],
    ids=["llama", "accumulation", "checkpointing", "bert"],
)
def test_trainer_trains_as_on_the_cpu(fresh_accelerate, tmp_path, model, data, settings):
    def run(**device):
        trained = trainer(tmp_path, model(), data, **settings, **device)
        trained.train()
        return trained, losses(trained)

    npusim_accelerate.enable()
    trained, ours = run()
    fresh_accelerate()
    _, theirs = run(use_cpu=True)
    assert trained.args.device.type == "npusim"
    assert {parameter.device.type for parameter in trained.model.parameters()} == {"npusim"}
    assert len(ours) == 4
    assert ours == theirs


def test_trainer_in_bfloat16_by_the_environment(monkeypatch, tmp_path):
    npusim_accelerate.enable()
    # Upstream's list again: when this fails, TrainingArguments(bf16=True) works on npusim.
    with pytest.raises(ValueError, match="doesn't support bf16/gpu"):
        trainer(tmp_path, llama(), bf16=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    trained = trainer(tmp_path, llama())
    dtypes = set()
    trained.model.model.layers[0].mlp.up_proj.register_forward_hook(
        lambda module, inputs, output: dtypes.add(output.dtype)
    )
    trained.train()
    assert dtypes == {torch.bfloat16}
    assert losses(trained)[-1] < losses(trained)[0]


def test_trainer_in_float16(tmp_path):
    npusim_accelerate.enable()
    trained = trainer(tmp_path, llama())
    npusim_accelerate.use_fp16(trained.accelerator, init_scale=1024.0, growth_interval=2)
    dtypes = set()
    trained.model.model.layers[0].mlp.up_proj.register_forward_hook(
        lambda module, inputs, output: dtypes.add(output.dtype)
    )
    trained.train()
    assert dtypes == {torch.float16}
    assert trained.accelerator.scaler.get_scale() == 4096.0  # four good steps
    assert losses(trained)[-1] < losses(trained)[0]


@pytest.mark.parametrize("kept", [True, False])
def test_trainer_resumes_with_the_devices_random_states(fresh_accelerate, tmp_path, kept):
    npusim_accelerate.enable()
    settings = {
        "save_strategy": "steps",
        "save_steps": 2,
        "restore_callback_states_from_checkpoint": True,
    }

    def run(checkpoint=None):
        callbacks = [npusim_transformers.random_state_callback()] if kept else []
        model = llama(attention_dropout=0.5)
        trained = trainer(tmp_path, model, callbacks=callbacks, **settings)
        trained.train(resume_from_checkpoint=checkpoint)
        return losses(trained)

    whole = run()
    resumed = run(str(tmp_path / "checkpoint-2"))
    # Without the callback: the Trainer keeps the random states of the devices in its list only.
    assert (resumed == whole) == kept


def test_generate_greedily_as_on_the_cpu_and_sample_repeatably():
    model, prompt = llama().eval(), torch.randint(0, 128, (2, 5))
    plain = {"max_new_tokens": 6, "pad_token_id": 0}
    wanted = [model.generate(prompt, **plain, **how) for how in ({}, {"num_beams": 3})]
    model, prompt = model.to("npusim"), prompt.to("npusim")
    ours = [model.generate(prompt, **plain, **how) for how in ({}, {"num_beams": 3})]
    for mine, theirs in zip(ours, wanted, strict=True):
        assert mine.device.type == "npusim"
        assert torch.equal(mine.cpu(), theirs)

    def sampled():
        transformers.set_seed(11)
        return model.generate(prompt, do_sample=True, **plain)

    assert torch.equal(sampled(), sampled())


def test_from_pretrained_places_layers(tmp_path):
    model, ids = llama().eval(), torch.randint(0, 128, (2, 5))
    wanted = model(ids).logits
    model.save_pretrained(tmp_path)

    def loaded(**how):
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, **how).eval()
        assert torch.equal(model(ids.to(model.device)).logits.cpu(), wanted)
        return model, getattr(model, "hf_device_map", {})

    assert loaded(device_map="npusim:1")[0].device == torch.device("npusim", 1)
    # Upstream's list: "auto" sees no memory but the host's. When this fails, max_memory() can go.
    assert loaded(device_map="auto")[0].device.type == "cpu"
    _, places = loaded(device_map="auto", max_memory=npusim_accelerate.max_memory())
    assert set(places.values()) == {0, 1}
    _, places = loaded(device_map="auto", max_memory={0: 30_000, 1: 60_000, "cpu": 1 << 20})
    assert "cpu" in places.values()


def test_lora_trains_only_its_own_weights(tmp_path):
    from peft import LoraConfig, get_peft_model

    npusim_accelerate.enable()
    model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trained = trainer(tmp_path, model)
    trained.train()
    changed = {
        name
        for name, weight in trained.model.named_parameters()
        if not torch.equal(weight.cpu(), before[name])
    }
    assert changed == {name for name in before if "lora" in name}


def test_the_device_file_of_transformers_own_tests(tmp_path, monkeypatch):
    (tmp_path / "spec.py").write_text("from torch_npusim.integrations.transformers import *\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMERS_TEST_DEVICE", "npusim")
    monkeypatch.setenv("TRANSFORMERS_TEST_DEVICE_SPEC", "spec.py")
    monkeypatch.setattr(sys, "path", [*sys.path])  # the import below adds to it
    for name in ("spec", "transformers.testing_utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    utils = importlib.import_module("transformers.testing_utils")
    assert sys.modules.pop("spec").__file__ == str(tmp_path / "spec.py")

    assert utils.torch_device == "npusim"
    assert utils.backend_device_count("npusim") == torch.npusim.device_count()
    utils.backend_manual_seed("npusim", 4)
    drawn = torch.rand(3, device="npusim")
    utils.backend_manual_seed("npusim", 4)
    assert torch.equal(torch.rand(3, device="npusim"), drawn)
    torch.empty(1 << 25, device="npusim")
    reserved = torch.npusim.memory_reserved()
    utils.backend_empty_cache("npusim")
    assert torch.npusim.memory_reserved() < reserved


def test_upstream_trainer_chooses_cpu_unless_told(tmp_path):
    # When this fails, transformers has learnt to ask torch.accelerator: enable() can go.
    assert transformers.TrainingArguments(output_dir=str(tmp_path)).device.type == "cpu"
    assert PartialState().device.type == "cpu"
    assert sys.modules["transformers"].utils.get_current_accelerator().type == "npusim"
