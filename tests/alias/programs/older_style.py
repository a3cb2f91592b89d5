# SPDX-License-Identifier: BSD-3-Clause
"""Idioms of older CUDA code: typed tensors, .cuda() everywhere, several devices by index."""

import os

import torch
from torch import nn
from torch.autograd import Variable

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0,1")
Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
torch.cuda.manual_seed_all(123)
torch.backends.cudnn.deterministic = True

latent, size = 8, 16
generator = nn.Sequential(nn.Linear(latent, 32), nn.LeakyReLU(0.2), nn.Linear(32, size), nn.Tanh())
judge = nn.Sequential(nn.Linear(size, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid())
criterion = nn.BCELoss()
if torch.cuda.is_available():
    generator.cuda()
    judge.cuda()
    criterion.cuda()
one, other = (torch.optim.Adam(m.parameters(), lr=2e-3) for m in (generator, judge))
for _ in range(5):
    valid = Variable(Tensor(4, 1).fill_(1.0), requires_grad=False)
    fake = Variable(Tensor(4, 1).fill_(0.0), requires_grad=False)
    real = Variable(torch.rand(4, size).type(Tensor))
    made = generator(Variable(Tensor(4, latent).normal_()))
    one.zero_grad()
    criterion(judge(made), valid).backward()
    one.step()
    other.zero_grad()
    loss = (criterion(judge(real), valid) + criterion(judge(made.detach()), fake)) / 2
    loss.backward()
    other.step()
print("finite", bool(torch.isfinite(loss)), isinstance(made, torch.cuda.FloatTensor))

for index in range(torch.cuda.device_count()):
    with torch.cuda.device(index):
        x = torch.cuda.LongTensor([index]).cuda()
        print("device", index, x.get_device(), torch.cuda.current_device(), x.is_cuda)
y = torch.ones(2).cuda(1)
print("moved", y.cuda(0).get_device(), y.new(3).get_device(), (y.cuda("cuda:0") + 1).sum().item())
if torch.cuda.device_count() > 1:
    parallel = nn.DataParallel(generator)
    print("parallel", tuple(parallel(torch.zeros(6, latent).cuda()).shape))
rnn = nn.GRU(4, 8, batch_first=True).cuda()
rnn.flatten_parameters()
hidden = torch.zeros(1, 2, 8).cuda()
print("rnn", rnn(torch.ones(2, 3, 4).cuda(), hidden)[0].device == hidden.device)
