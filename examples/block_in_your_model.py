"""A gMLP block in a model of your own: learn to say, at every token, what stood three places before.

No attention and no transformers: the Toeplitz W only has to find one offset. Prints the error and the offset that W found.
"""

from __future__ import annotations

import torch
from torch import nn

from mixlab.layers import GMLPBlock

LENGTH, WIDTH, BACK = 32, 16, 3


class Recall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(4, WIDTH)
        self.block = GMLPBlock(WIDTH, 4 * WIDTH, LENGTH, structure="toeplitz")
        self.narrow = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.block(self.widen(x)))


def main() -> float:
    torch.manual_seed(0)
    model = Recall()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    error = torch.tensor(0.0)
    for step in range(150):
        x = torch.randn(64, LENGTH, 4)
        wanted = torch.roll(x, BACK, dims=1)[:, BACK:]
        error = (model(x)[:, BACK:] - wanted).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:>3}  squared error {error.item():.3f}   (guessing gives 1)")
    taps = model.block.gate.spatial.at(LENGTH).taps.detach()[0]
    found = int(taps.abs().argmax()) - (LENGTH - 1)
    print(f"squared error {error.item():.3f}; the largest tap of W looks {found} tokens back")
    assert found == BACK
    return error.item()


if __name__ == "__main__":
    main()
