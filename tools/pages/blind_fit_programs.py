# SPDX-License-Identifier: BSD-3-Clause
"""Programs of the fourth list of blind_peaks.md, as a user gives them to `npusim fit`.

    npusim fit --as-cuda --spec a100-80-sxm tools/pages/blind_fit_programs.py vit 64 float32 adam 1

The models are those of torchvision, timm, transformers and peft, and of two repositories, whose
files BLIND_SOURCES has: dino/{vision_transformer,utils,main_dino}.py of facebookresearch/dino at
7c446df, llms/*.py of rasbt/LLMs-from-scratch at 28c65cd. The loops are written anew.
"""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path

import torch
from torch.nn import functional as F

HERE = Path(__file__).resolve()
sys.path += [str(HERE.parents[1] / "packages"), os.environ.get("BLIND_SOURCES", "")]

from blind_programs import AdamOf20  # noqa: E402
from peak_programs import old_softmax  # noqa: E402

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STEPS = 3


def load(path, **hidden):
    """A file of BLIND_SOURCES; `hidden` are modules that it imports and does not need here."""
    for name, attributes in hidden.items():
        made = types.ModuleType(name.replace("_", "."))
        made.__dict__.update(attributes)
        sys.modules.setdefault(made.__name__, made)
    file = Path(os.environ["BLIND_SOURCES"]) / path
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem.replace(".", "_"), file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- rasbt/pytorch-memory-optim: 01, 02, 03, 04, 05 and 06


def vit(batch, precision, optimizer, accumulated):
    importlib.import_module("without_vision_ops")
    from torchvision.models import vit_l_16

    model = vit_l_16()
    model.heads.head = torch.nn.Linear(1024, 10)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model.to("cuda", dtype)
    made = {"adam": torch.optim.Adam, "adam20": AdamOf20, "sgd": torch.optim.SGD}[optimizer](
        model.parameters(), 5e-5
    )
    scaler = torch.amp.GradScaler(enabled=precision == "mixed")
    for step in range(STEPS):
        features = torch.randn(batch, 3, 224, 224).to("cuda").to(dtype)
        targets = torch.randint(10, (batch,)).to("cuda")
        model.train()
        with torch.autocast("cuda", torch.float16, enabled=precision == "mixed"):
            logits = model(features)
        logits = logits.float()
        loss = F.cross_entropy(logits, targets) / accumulated
        if accumulated == 1:
            made.zero_grad()
        scaler.scale(loss).backward()
        if accumulated == 1:
            scaler.step(made)
            scaler.update()
        elif step % accumulated == 0:
            made.step()
            made.zero_grad()
    model.eval()
    with torch.no_grad():
        model(torch.randn(batch, 3, 224, 224).to("cuda").to(dtype))


# --- rasbt/LLMs-from-scratch, ch05/10_llm-training-speed


def gpt2(file, batch, dtype, attention, vocabulary, compiled):
    module = load(
        f"llms/{file}", tiktoken={}, matplotlib={}, matplotlib_pyplot={}, requests={}
    )  # fmt: skip
    config = {
        "vocab_size": vocabulary, "context_length": 1024, "emb_dim": 768, "n_heads": 12,
        "n_layers": 12, "drop_rate": 0.1, "qkv_bias": False,
    }  # fmt: skip
    if attention == "written":
        original = load("llms/00_orig.py")
        wanted = functools.partial(original.MultiHeadAttention, context_length=1024)
        module.PyTorchMultiHeadAttention = wanted
    torch.set_float32_matmul_precision("high")
    model = module.GPTModel(config)
    if compiled:
        model = torch.compile(model)
    model.to("cuda").to(DTYPES[dtype])
    fused = file != "00_orig.py"
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1, fused=fused)

    def loss_of(rows):
        words = torch.randint(50257, (rows, 1024)).to("cuda")
        targets = torch.randint(50257, (rows, 1024)).to("cuda")
        return F.cross_entropy(model(words).flatten(0, 1), targets.flatten())

    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        if step == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(2):
                    loss_of(batch).item()
            model.train()


# --- rasbt/LLMs-from-scratch, ch04/07_moe


def moe(file, hidden, experts):
    module = load(f"llms/{file}", tiktoken={})
    config = {
        "vocab_size": 50257, "context_length": 1028, "emb_dim": 4096, "hidden_dim": hidden,
        "n_heads": 16, "n_layers": 12, "drop_rate": 0.0, "qkv_bias": False, "num_experts": experts,
        "num_experts_per_tok": 2 if experts else 0,
    }  # fmt: skip
    model = module.GPTModel(config).to("cuda", dtype=torch.bfloat16).eval()
    words = torch.randint(50257, (1, 4), device="cuda")
    module.generate_text_simple_cached(model=model, idx=words, max_new_tokens=1024)


# --- facebookresearch/dino


def dino(batch, crops, old=False):
    import numpy

    if old:  # a softmax that saves its input
        torch.Tensor.softmax = lambda x, dim: old_softmax(x.float(), dim)

    importlib.import_module("without_vision_ops")

    numpy.float = float
    module = load("dino/main_dino.py")
    vits, utils = sys.modules["vision_transformer"], sys.modules["utils"]
    torch.distributed.init_process_group(
        "uniform", rank=0, world_size=8, store=torch.distributed.HashStore()
    )
    student = utils.MultiCropWrapper(
        vits.vit_small(patch_size=16, drop_path_rate=0.1), vits.DINOHead(384, 65536)
    )
    teacher = utils.MultiCropWrapper(vits.vit_small(patch_size=16), vits.DINOHead(384, 65536))
    student, teacher = student.cuda(), teacher.cuda()
    student = torch.nn.parallel.DistributedDataParallel(student)
    teacher.load_state_dict(student.module.state_dict())
    for parameter in teacher.parameters():
        parameter.requires_grad = False
    dino_loss = module.DINOLoss(65536, crops + 2, 0.04, 0.04, 0, 100).cuda()
    # torch 1.7 steps one parameter after the other, and zeroes gradients.
    optimizer = torch.optim.AdamW(utils.get_params_groups(student), foreach=False)
    scaler = torch.amp.GradScaler()
    for _ in range(STEPS):
        sides = [224] * 2 + [96] * crops
        images = [torch.randn(batch, 3, side, side).cuda() for side in sides]
        with torch.autocast("cuda", torch.float16):
            loss = dino_loss(student(images), teacher(images[:2]), 0)
        loss.item()
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        utils.clip_gradients(student, 3.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for q, k in zip(student.module.parameters(), teacher.parameters(), strict=True):
                k.data.mul_(0.996).add_(0.004 * q.detach().data)


# --- pytorch/vision, references/classification


def swin(batch):
    importlib.import_module("without_vision_ops")
    from torchvision.models import swin_v2_t

    torch.distributed.init_process_group(
        "uniform", rank=0, world_size=4, store=torch.distributed.HashStore()
    )
    model = swin_v2_t().cuda()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)
    scaler = torch.amp.GradScaler()
    model = torch.nn.parallel.DistributedDataParallel(model)
    average = torch.optim.swa_utils.AveragedModel(model.module)
    for _ in range(STEPS):
        images = torch.randn(batch, 3, 256, 256).cuda()
        targets = torch.rand(batch, 1000).cuda()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(images), targets, label_smoothing=0.1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model.module)


# --- huggingface/peft, method_comparison/MetaMathQA


def metamath(method, length):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28,
        num_attention_heads=24, num_key_value_heads=8, tie_word_embeddings=True, head_dim=128,
        max_position_embeddings=131072,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    if method != "full":
        import peft

        given = {
            "lora": lambda: peft.LoraConfig(
                r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"]
            ),
            "norms": lambda: peft.LNTuningConfig(),
        }[method]()
        given.task_type = "CAUSAL_LM"
        model = peft.get_peft_model(model, given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    model.train()
    for _ in range(STEPS):
        words = torch.randint(1, 128000, (4, length)).to("cuda")
        batch = {
            "input_ids": words,
            "attention_mask": torch.ones_like(words),
            "labels": words.clone(),
        }
        count = batch["attention_mask"].sum().item()
        optimizer.zero_grad()
        outputs = model(**batch, num_items_in_batch=count)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()


# --- huggingface/optimum-benchmark: a Trainer of transformers


def bert():
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig()).to("cuda").train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-5)
    for _ in range(7):
        words = torch.randint(1, 30000, (2, 16)).to("cuda")
        batch = {name: torch.ones_like(words) for name in ("attention_mask", "token_type_ids")}
        loss = model(input_ids=words, labels=words, **batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()


# --- pytorch/ao, benchmarks/benchmark_low_bit_adam.py


def ao(name, batch, amp, checkpointed, compiled):
    importlib.import_module("without_vision_ops")
    import timm

    sized = {"img_size": 224} if "dinov2" in name else {}
    model = timm.create_model(name, num_classes=45, **sized)
    if checkpointed:
        model.set_grad_checkpointing()
    if not amp:
        model.bfloat16()
    model.to("cuda")
    if compiled:
        model.compile(fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    context = torch.autocast("cuda", torch.bfloat16) if amp else contextlib.nullcontext()
    model.train()
    for _ in range(STEPS):
        images = torch.randn(batch, 3, 224, 224)
        images = images if amp else images.bfloat16()
        with context:
            loss = F.cross_entropy(model(images.to("cuda")), torch.randint(45, (batch,)).to("cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    words = [int(word) if word.isdigit() else word for word in sys.argv[2:]]
    globals()[sys.argv[1]](*words)
