# SPDX-License-Identifier: BSD-3-Clause
"""examples/onnx_web: a model exported from npusim runs in the browser, and the numbers agree."""

import json
import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from browser.driver import browser
from processes import python
from repo.sources import ROOT

EXPORT = """
import json, sys, torch, torch_npusim
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
net = net.to("npusim").eval()
x = torch.randn(2, 8, device="npusim")
torch.onnx.export(net, (x,), dynamo=True, verbose=False).save("net.onnx")
open("numbers.json", "w").write(json.dumps(x.tolist()))
open("right.json", "w").write(json.dumps(net(x).flatten().tolist()))
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "onnx_web"
    shutil.copytree(ROOT / "examples" / "onnx_web", made)
    (made / "ort").symlink_to(ROOT / "build" / "onnx-web/node_modules/onnxruntime-web/dist")
    packages = os.pathsep.join([str(ROOT / "build" / "docs-env"), str(ROOT)])
    python("-c", EXPORT, cwd=made, variables={"PYTHONPATH": packages}, check=True, timeout=300)
    return made


def test_the_browser_computes_what_npusim_has_computed(folder):
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with browser() as reader:
            reader.go(f"http://127.0.0.1:{server.server_port}/index.html")
            reader.wait("document.body.dataset.ready || document.body.dataset.failed")
            assert reader.run("return document.body.dataset.failed || ''") == ""
            told = reader.run("return document.getElementById('output').textContent")
    finally:
        server.shutdown()
    made = torch.tensor([float(number) for number in told.split()])
    right = torch.tensor(json.loads((folder / "right.json").read_text()))
    torch.testing.assert_close(made, right, atol=1e-5, rtol=1e-5)
