"""Learned sinks: a score of each head that belongs to no token, so that a query may attend to
nothing (gpt-oss, DeepSeek-V4).
"""

from __future__ import annotations

from torch import Tensor

from ropewalk.attention.backends import Call, run_math
from ropewalk.attention.lse import attend_with_lse
from ropewalk.errors import RopeError


def attend_with_sinks(
    call: Call, sinks: Tensor, backend: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return attention whose softmax has one more term, exp(sinks[h]) for head h, whose value is 0;
    and the weights on the keys if the call wants them, else None. `backend` is a name in
    LSE_BACKENDS; None: chosen for the call.
    """
    if call.dropout:
        raise RopeError(
            "dropout", "must be 0 with learned sinks, or the model in eval mode", call.dropout
        )
    part = attend_with_lse(call, backend)
    # the share of the softmax that belongs to keys, exp(lse) / (exp(lse) + exp(sink)); without keys
    # the log-sum-exp is -inf and the share is 0
    share = (part.lse - sinks.to(part.lse.dtype).unsqueeze(-1)).sigmoid().unsqueeze(-1)
    weights = run_math(call)[1] * share if call.wants_weights else None
    return (part.out * share).to(call.v.dtype), weights
