"""What bfloat16 leaves of small numbers: of a young adapter in a layer's output, and of the head's
gradient at confident tokens.

    python benchmarks/precision.py

At the width of Qwen2.5-7B (hidden_size 3,584), with random weights of its scale, LoRA of rank 64
and scaling 1, and a learning rate of 1e-5. Without a trained model: the adapter's B moves by
AdamW's step, once with one sign per weight, once with a new one at every update. Then the same of
the layer's own weights at a tenth of that rate: in bfloat16, and in float32, from which
a copy in bfloat16 is made. Half a minute on one core.
"""

import torch
from torch import Tensor

from flowright.policy.head import Head
from flowright.policy.lora import adapted_product

WIDTH, RANK, ROWS, RATE = 3584, 64, 192, 1e-5
WORDS, TOKENS = 8192, 32
HALF = torch.bfloat16


def adapters(walk: bool) -> dict[int, Tensor]:
    """B [WIDTH, RANK] by the number of updates behind it."""
    draw = torch.Generator().manual_seed(1)
    b, found = torch.zeros(WIDTH, RANK), {}
    sign = torch.randn(b.shape, generator=draw).sign()
    for update in range(1, 101):
        b += RATE * sign
        if update in (1, 10, 50, 100):
            found[update] = b.clone()
        if walk:
            sign = torch.randn(b.shape, generator=draw).sign()
    return found


def shares(x: Tensor, weight: Tensor, a: Tensor, b: Tensor) -> list[float]:
    """Of the adapter's share of the output: merged; the base's product first; the adapter's first,
    as in flowright.policy.lora."""
    wanted = (x.float() @ a.T) @ b.T
    low_a, low_b = a.to(HALF), b.to(HALF)
    base = x @ weight.T
    ways = (
        x @ (weight + (b @ a).to(HALF)).T,
        base.clone().addmm_(x @ low_a.T, low_b.T),
        adapted_product(x, weight, None, low_a, low_b, 1.0),
    )
    return [
        float(((out.float() - base.float()) * wanted).sum() / wanted.square().sum()) for out in ways
    ]


def head_errors(p: float) -> list[float]:
    """Relative errors of the gradient of log p in the hidden state: as a difference of two products
    in bfloat16, and as Head computes it."""
    draw = torch.Generator().manual_seed(0)
    weight = (0.02 * torch.randn(WORDS, WIDTH, generator=draw)).to(HALF)
    target = torch.arange(TOKENS)
    along = weight[target].float()
    along /= along.square().sum(dim=1, keepdim=True)
    scale = along @ weight.float().T
    low, high, middle = 0.0, 60.0, 30.0
    for _ in range(40):
        mean = (middle * scale).softmax(dim=1).gather(1, target[:, None]).mean()
        low, high = (low, middle) if mean > p else (middle, high)
        middle = (low + high) / 2
    hidden = (middle * along).to(HALF).requires_grad_()
    exact = hidden.detach().float().requires_grad_()
    logprobs = (exact @ weight.float().T).log_softmax(dim=1)
    logprobs.gather(1, target[:, None]).sum().backward()
    Head(weight).logprobs(hidden, target, 1.0)[0].sum().backward()
    with torch.no_grad():
        q = (hidden @ weight.T).float().softmax(dim=1)
        difference = weight[target] - q.to(HALF) @ weight
    assert exact.grad is not None and hidden.grad is not None
    return [
        float((found.float() - exact.grad).norm() / exact.grad.norm())
        for found in (difference, hidden.grad)
    ]


def kept_of_full(updates: int, walk: bool) -> tuple[float, float, float]:
    """Share of the sum of all steps of 1e-6 that weights hold: bfloat16 ones that are trained,
    float32 ones, and a bfloat16 copy of these."""
    draw = torch.Generator().manual_seed(2)
    exact = (0.02 * torch.randn(WIDTH, 256, generator=draw)).to(HALF).double()
    start, half, master = exact.clone(), exact.to(HALF), exact.float()
    sign = torch.randn(exact.shape, generator=draw).sign()
    for _ in range(updates):
        step = RATE / 10 * sign
        exact += step
        master += step
        half += step.to(HALF)
        if walk:
            sign = torch.randn(exact.shape, generator=draw).sign()
    wanted = exact - start
    low, high, copy = (
        float(((found.double() - start) * wanted).sum() / wanted.square().sum())
        for found in (half, master, master.to(HALF))
    )
    return low, high, copy


def main() -> None:
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    weight = (0.02 * torch.randn(WIDTH, WIDTH, generator=draw)).to(HALF)
    a = (2 * torch.rand(RANK, WIDTH, generator=draw) - 1) / WIDTH**0.5
    x = torch.randn(ROWS, WIDTH, generator=draw).to(HALF)
    print("share of the adapter in a layer's output   merged   base first   adapter first")
    with torch.no_grad():
        for walk in (False, True):
            for updates, b in adapters(walk).items():
                row = "   ".join(f"{100 * share:6.1f} %" for share in shares(x, weight, a, b))
                how = "a new sign each" if walk else "one sign"
                print(f"{updates:4} updates, {how:24} {row}")
    print("\nshare of steps of 1e-6 in weights   in bfloat16   in float32   its copy in bfloat16")
    for walk in (False, True):
        for updates in (1, 10, 100, 300):
            row = "   ".join(f"{100 * share:8.1f} %" for share in kept_of_full(updates, walk))
            print(f"{updates:4} updates, {'a new sign each' if walk else 'one sign':18} {row}")
    print("\nrelative error of the head's gradient   two products   one product")
    for p in (0.9, 0.99, 0.995, 0.998):
        print(f"p = {p:<6}" + " ".join(f"{error:20.4f}" for error in head_errors(p)))


if __name__ == "__main__":
    main()
