"""A causal gMLP learns a rule and continues prompts of different lengths in one batch, with a cache."""

from __future__ import annotations

import torch

import mixlab

PERIOD = 5


def batch(size: int, length: int) -> torch.Tensor:
    """Rows that repeat five random tokens."""
    return torch.randint(2, 30, (size, PERIOD)).repeat(1, length // PERIOD + 1)[:, :length]


def main() -> float:
    torch.manual_seed(0)
    model = mixlab.create("amlp-tiny", task="causal-lm", vocab_size=30, max_position_embeddings=40, num_hidden_layers=2, pad_token_id=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(200):
        ids = batch(32, 30)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:>3}  loss {loss.item():.3f}")

    model.eval()
    texts = batch(2, 25)
    prompts, mask = texts[:, :15].clone(), torch.ones(2, 15, dtype=torch.long)
    prompts[0, :5], mask[0, :5] = 0, 0  # the first prompt is shorter: padded on the left
    continued = model.generate(prompts, attention_mask=mask, max_new_tokens=10, do_sample=False)[:, 15:]
    right = (continued == texts[:, 15:]).float().mean().item()
    print(f"{right:.0%} of the generated tokens follow the rule")
    return right


if __name__ == "__main__":
    main()
