# SPDX-License-Identifier: BSD-3-Clause
"""The loop of a first CUDA tutorial: a small network learns images of digits."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.norm = nn.BatchNorm2d(16)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.norm(self.conv2(x))), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, device, loader, optimizer):
    model.train()
    for data, target in loader:
        data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    return loss.item()


def test(model, device, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data.to(device))
            correct += (
                output.argmax(dim=1, keepdim=True).eq(target.to(device).view(-1, 1)).sum().item()
            )
    return correct


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--save")
    arguments = parser.parse_args()
    use_cuda = not arguments.no_cuda and torch.cuda.is_available()
    torch.manual_seed(1)
    device = torch.device("cuda" if use_cuda else "cpu")
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    images = (images.float() / 16).view(-1, 1, 8, 8)
    options = {"batch_size": 64}
    if use_cuda:
        options.update({"num_workers": 1, "pin_memory": True})
        torch.backends.cudnn.benchmark = True
    train_loader = DataLoader(TensorDataset(images[:512], labels[:512]), **options)
    test_loader = DataLoader(TensorDataset(images[512:768], labels[512:768]), **options)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.9)
    for epoch in range(1, 4):
        loss = train(model, device, train_loader, optimizer)
        print(f"epoch {epoch} loss {loss:.8f} correct {test(model, device, test_loader)}")
        scheduler.step()
    if arguments.save:
        torch.save(model.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
