"""Continue a text with a causal model, token by token with a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from mixlab.errors import MixlabError


def main(
    run: Annotated[Path, tyro.conf.Positional],
    prompt: str,
    tokens: int = 40,
    temperature: float = 0.8,
    seed: int = 0,
) -> None:
    """Print the prompt and what follows.

    Args:
        run: The folder of a run of a causal recipe.
        prompt: The text to continue.
        tokens: How many tokens at most.
        temperature: 0 takes the likeliest token each time; larger is more varied.
        seed: Of the sampling.
    """
    import torch

    from mixlab.tasks.runs import opened

    if tokens < 1 or temperature < 0:
        raise MixlabError(f"tokens {tokens} and temperature {temperature}: give at least 1, and at least 0")
    task, model, tokenizer = opened(run)
    if task.job.task != "causal-lm":
        raise MixlabError(f"{run} was trained for {task.job.task}, which does not generate; train with causal-small")
    inputs = tokenizer(prompt, return_tensors="pt", truncation=False, verbose=False)
    length = inputs["input_ids"].shape[1]
    room = model.config.length - length
    if length < 1 or room < 1:
        most = model.config.length - 1
        raise MixlabError(f"the prompt has {length} tokens, and the model continues texts of 1 to {most}; change the prompt")
    torch.manual_seed(seed)
    options = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    options |= {"max_new_tokens": min(tokens, room), "pad_token_id": tokenizer.pad_token_id}
    ids = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **options)
    print(tokenizer.decode(ids[0], skip_special_tokens=True))
