"""Model, data and training, as in Flower's quickstart for PyTorch.

The images are scikit-learn's digits instead of a download, enlarged to what the model takes.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 (as in the quickstart)
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

HELD_OUT = 297  # How many images the server keeps: half to validate, half to test.
MISLABELLED = (1, 3)  # These clients have the labels of their images in the wrong order.


class Net(nn.Module):
    """The quickstart's model."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        """Map images ``[n, 3, 32, 32]`` to logits ``[n, 10]``."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


@cache
def load_examples():
    """Return all digits as dicts, in a fixed random order."""
    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1  # [n, 1, 8, 8]
    images = F.interpolate(pixels, size=(32, 32)).expand(-1, 3, -1, -1)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    return [{"img": images[i], "label": int(digits.target[i])} for i in order]


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """Return a client's train and test loaders."""
    own = load_examples()[HELD_OUT + partition_id :: num_partitions]
    if partition_id in MISLABELLED:
        own = [{**example, "label": own[i - 1]["label"]} for i, example in enumerate(own)]
    cut = int(0.8 * len(own))
    trainloader = DataLoader(own[:cut], batch_size=batch_size, shuffle=True)
    return trainloader, DataLoader(own[cut:], batch_size=batch_size)


def load_held_out(batch_size: int):
    """Return the server's validation and test loaders."""
    held_out = load_examples()[:HELD_OUT]
    half = HELD_OUT // 2
    return DataLoader(held_out[:half], batch_size), DataLoader(held_out[half:], batch_size)


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set, and return its mean loss."""
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            images = batch["img"].to(device)
            labels = batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    """Return loss and accuracy of the model on the test set."""
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in testloader:
            images = batch["img"].to(device)
            labels = batch["label"].to(device)
            outputs = net(images)
            loss += criterion(outputs, labels).item()
            correct += (torch.max(outputs.data, 1)[1] == labels).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
