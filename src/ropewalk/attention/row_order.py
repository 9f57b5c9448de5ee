"""Padding and packed documents for attention whose encoding follows from the tokens.

What one token adds to the encoding of the next depends on their order, so the tokens of a row are
sorted first: those of a document become neighbours, and padding goes to the end, where no real
token sees it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.attention.masks import check_token_masks
from ropewalk.errors import RopeError


@dataclass(frozen=True, eq=False)
class RowOrder:
    """How the tokens of each row are sorted.

    index      [B, S], the places in the row of the sorted tokens
    documents  [B, S], the document index of each sorted token; None: the row is one document
    real       [B, S], False for sorted tokens that are padding; None: all are real
    """

    index: Tensor
    documents: Tensor | None
    real: Tensor | None

    def sorted(self, x: Tensor) -> Tensor:
        """Return x [B, S, ..] with its tokens in this order."""
        return x.take_along_dim(self.index.unsqueeze(-1), dim=1)

    def restored(self, out: Tensor) -> Tensor:
        """Return sorted tokens [B, S, ..] in the order of the row, with 0 for padding."""
        out = out if self.real is None else out.masked_fill(~self.real.unsqueeze(-1), 0.0)
        return out.take_along_dim(self.index.argsort(dim=-1).unsqueeze(-1), dim=1)


def row_order(
    x: Tensor, padding: Tensor | None, documents: Tensor | None, continues: bool
) -> RowOrder | None:
    """Return the order of the tokens of x [B, S, ..]: by document, padding last; None if neither
    padding nor documents are given.

    padding    boolean [B, S], True for real tokens
    continues  the call continues from a state, so that documents raise an error
    """
    check_token_masks(x.shape[0], x.shape[1], padding, documents)
    if documents is not None and continues:
        raise RopeError(
            "documents",
            "cannot be used with a state; give each document its own row",
            list(documents.shape),
        )
    if padding is None and documents is None:
        return None
    index = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    # stable sorts, first by document, then by padding: padding of all documents goes to the end
    for sort_key in (documents, None if padding is None else ~padding):
        if sort_key is not None:
            # sort_key in the order so far; its argsort reorders `index`
            index = index.gather(-1, sort_key.long().gather(-1, index).argsort(dim=-1, stable=True))
    documents, padding = (
        None if each is None else each.gather(-1, index) for each in (documents, padding)
    )
    return RowOrder(index, documents, padding)


def real_tokens(
    old: Tensor | None, earlier: int, order: RowOrder | None, x: Tensor
) -> Tensor | None:
    """Return which of the `earlier` tokens and the S new tokens of x are real, [B, earlier + S];
    None if all are.

    `old` [B, earlier] says which of the earlier tokens are real, `order` which of the new ones;
    None: all of them.
    """
    new = None if order is None else order.real
    if old is None and new is None:
        return None
    batch, seq = x.shape[:2]
    old = torch.ones(batch, earlier, dtype=torch.bool, device=x.device) if old is None else old
    new = torch.ones(batch, seq, dtype=torch.bool, device=x.device) if new is None else new
    return torch.cat((old, new), dim=-1)


def visible_keys(
    rows: int, columns: int, order: RowOrder | None, real: Tensor | None, device: torch.device
) -> Tensor:
    """Return a boolean [rows, columns] or [B, 1, rows, columns], True where a query sees a key: its
    own key, and the earlier real keys of its document.

    rows, columns  the number of queries, which are the last tokens, and of keys
    real           [B, columns], which keys are real. A padded query sees its own key, so that its
                   softmax is not NaN
    """
    visible = torch.ones(rows, columns, dtype=torch.bool, device=device).tril(columns - rows)
    if order is not None and order.documents is not None:
        # a call with documents has no earlier tokens, so there are as many keys as queries
        visible = visible & (
            order.documents.unsqueeze(-1) == order.documents.unsqueeze(-2)
        ).unsqueeze(1)
    if real is not None:
        # each query's own key: the diagonal of the last `rows` columns
        own_key = (
            torch.ones(rows, columns, dtype=torch.bool, device=device)
            .tril(columns - rows)
            .triu(columns - rows)
        )
        visible = visible & (real[:, None, None, :] | own_key)
    return visible
