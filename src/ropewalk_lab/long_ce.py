"""LongCE: cross entropy in which tokens that need a long context weigh more; computed in chunks of
tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ropewalk_lab.fit.reader import MAX_LOGITS

#: the largest weight of a token in the loss
MOST = 5.0


def token_weights(short: Tensor, full: Tensor, context: int) -> Tensor:
    """Return the weight of each token in LongCE, larger if the long context helps: exp(short -
    full), at most MOST.

    short, full  losses [S] with a short context and with the full one: entry i is that of token
                 i + 1, since token 0 has no loss
    context      the size of the short context; tokens 1 to context - 1 have weight 1, because for
                 them both contexts are the same

    The weights have no gradient.
    """
    weights = (short - full).detach().exp().clamp(max=MOST)
    weights[: context - 1] = 1.0
    return weights


def chunked_loss(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    vocab_size: int,
    short: Tensor | None = None,
    context: int = 1,
) -> Tensor:
    """Return the mean loss of targets [S] after hidden states [S, width]; weighted as LongCE if
    `short` is given. The weighted losses are divided by S, not by the sum of the weights.

    head            from hidden states to logits
    short, context  as in `token_weights`

    Logits are computed chunk by chunk, and again in the backward pass, because those of all tokens
    would not fit in memory.
    """
    chunk, total = max(1, MAX_LOGITS // vocab_size), hidden.new_zeros((), dtype=torch.float32)
    for start in range(0, len(targets), chunk):
        part = slice(start, start + chunk)
        losses = checkpoint(_losses, hidden[part], head, targets[part], use_reentrant=False)
        assert isinstance(losses, Tensor)
        if short is not None:
            # the first `context` - 1 losses of the whole text have weight 1; `start` of them are
            # before this chunk
            losses = losses * token_weights(short[part], losses, max(1, context - start))
        total = total + losses.sum()
    return total / len(targets)


def _losses(hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), targets, reduction="none")
