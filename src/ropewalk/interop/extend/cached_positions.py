"""The positions of the keys in a transformers cache, kept beside the keys that they belong to.

transformers caches rotated keys without their positions, but a remapping moves keys to other
positions. So every layer of a cache gets a second cache layer, which holds one number for each key,
its position, and goes through the same updates, crops and reorderings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ropewalk.caches import cached
from ropewalk.errors import RopeError

#: the methods of a cache layer, besides `update`, that change what it holds; the positions of its
#: keys follow them
FOLLOWED = (
    "crop",
    "reset",
    "reorder_cache",
    "batch_repeat_interleave",
    "batch_select_indices",
    "activate_past_recording",
)


@cached("classes of cached positions", entries=64)
def _class_with_positions(base: Any) -> type:
    """Return a subclass of a cache layer's class that also keeps the positions of its keys."""

    class WithPositions(base):
        """A cache layer that keeps the positions of its keys.

        new_positions   [B, S] of the tokens that the current call adds; None between calls
        key_positions   [B, N] of the keys that the last `update` returned
        position_layer  a cache layer with positions [B, 1, N, 1] in place of keys; None for good
                        once a model without remapping added tokens, whose positions are not known
        """

        #: None, because transformers would register a subclass that has a layer type
        _layer_type = None

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **more: Any) -> Any:
            """Add keys, values and their positions; return all keys and values."""
            seen = super().update(key_states, value_states, *args, **more)
            new, self.new_positions, self.key_positions = self.new_positions, None, None
            # tokens came whose positions are not known, in this call or before
            if new is None or self.position_layer is None:
                self.position_layer = None
                return seen
            new = new.to(key_states.device).expand(len(key_states), -1)[:, None, :, None]
            self.key_positions = self.position_layer.update(new, new, *args, **more)[0][:, 0, :, 0]
            return seen

        def __reduce_ex__(self, protocol: Any) -> tuple:
            # pickle cannot find this class by name, since it is made for each `base`
            return _restored, (base, vars(self))

    def followed(name: str) -> Callable:
        """Return a method that does to the positions what the method `name` does to the keys."""

        def method(self: Any, *args: Any, **more: Any) -> Any:
            result = getattr(super(WithPositions, self), name)(*args, **more)
            if self.position_layer is not None:
                getattr(self.position_layer, name)(*args, **more)
            return result

        return method

    for name in FOLLOWED:
        if hasattr(base, name):
            setattr(WithPositions, name, followed(name))
    WithPositions.__name__ = f"{base.__name__}WithPositions"
    return WithPositions


def _restored(base: type, state: dict[str, Any]) -> Any:
    """Return a copy of a cache layer with positions, from what `copy` or a pickle holds of it.

    base   the class of the layer before it got positions
    state  its attributes
    """
    new_class = _class_with_positions(base)
    layer = object.__new__(new_class)
    vars(layer).update(state)
    return layer


def _position_layer(layer: Any) -> Any:
    """Return an empty cache layer for the positions of a cache layer's keys; raise an error if the
    layer is neither dynamic nor static.
    """
    from transformers import cache_utils

    if isinstance(layer, cache_utils.StaticSlidingWindowLayer):  # as long as its window
        return cache_utils.StaticSlidingWindowLayer(layer.max_cache_len, layer.max_cache_len)
    if isinstance(layer, cache_utils.StaticLayer):
        return cache_utils.StaticLayer(layer.max_cache_len)
    if isinstance(layer, cache_utils.DynamicSlidingWindowLayer):
        followed = cache_utils.DynamicSlidingWindowLayer(layer.sliding_window)
        # whether it keeps tokens before its window until the next `crop`, as the keys' layer does
        followed.record_past = getattr(layer, "record_past", False)
        return followed
    if isinstance(layer, cache_utils.DynamicLayer):  # also where the keys themselves are quantized
        return cache_utils.DynamicLayer()
    rule = "must have dynamic or static layers, to keep the positions of its keys for a remapping"
    raise RopeError("past_key_values", rule, type(layer).__name__)


def keep_positions(cache: Any, layer_idx: int, positions: Tensor) -> None:
    """Make a cache keep `positions` [B, S] beside the keys that this call of the model will add to
    one layer, the one with the index `layer_idx`.
    """
    layers = getattr(cache, "layers", None)
    if layers is None:
        rule = "must be a transformers Cache with `layers` for a remapping (transformers >= 4.56)"
        raise RopeError("past_key_values", rule, type(cache).__name__)
    # a cache made without a config has no layers at first; `Cache.update` would add them like this
    replicated = getattr(cache, "layer_class_to_replicate", None)
    while replicated is not None and len(layers) <= layer_idx:
        layers.append(replicated())
    if layer_idx >= len(layers):  # a layer that attends to the keys of another one has no cache
        return
    layer = layers[layer_idx]
    if "position_layer" not in vars(layer):
        # the positions of keys that the layer already holds are not known
        layer.position_layer = None if layer.get_seq_length() else _position_layer(layer)
        layer.key_positions = None
        layer.__class__ = _class_with_positions(type(layer))
    layer.new_positions = positions


def positions_of_keys(cache: Any, layer_idx: int, positions: Tensor, keys: int) -> Tensor:
    """Return the positions [B, N] of the `keys` keys that one layer attends to, of which the
    current call of the model added some at `positions`.
    """
    layer = cache.layers[layer_idx] if layer_idx < len(cache.layers) else None
    # `update` of this layer has taken the new positions, so the layer has keys of its own
    if layer is not None and layer.new_positions is None:
        found = layer.key_positions
    elif keys == positions.shape[-1]:
        # the layer attends to the keys of another one, all of them new
        found = positions
    else:
        # the layer attends to the keys of another one, some of them cached: any layer with as many
        # keys has their positions
        other = (vars(each).get("key_positions") for each in cache.layers)
        found = next((each for each in other if each is not None and each.shape[-1] == keys), None)
    if found is None:
        rule = (
            "must hold only tokens of the remapped model, because it keeps the positions of their "
            "keys; begin with an empty cache"
        )
        raise RopeError("past_key_values", rule, f"{keys} keys in layer {layer_idx}")
    return found
