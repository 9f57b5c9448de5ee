"""The config while `doctor` examines it: a copy that repairs change in place, with what finders ask
of it, such as its ropes, its lengths and its sizes.

Words of this module:
  text part    the part of the config that describes the language model, such as `text_config`; the
               whole config if it has none
  rope object  `rope_parameters` of transformers 5, which is one rope or has one for each layer
               type, or `rope_scaling` of transformers 4
  rope         the dict of one rope: a rope object, or the part of it for one layer type
  place        the path of a rope in the text part, such as "rope_parameters.full_attention"; "" for
               the text part itself
  outside      in the text part itself, and not in a rope
  family       what the model's code fixes; `renamed` has {standard key: the name that it reads} and
               {rope_type in a config: the scaling that the code takes it for}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import Family, family_of
from ropewalk.config.file import TEXT_PARTS
from ropewalk.config.hf import read_specs
from ropewalk.errors import RopeError
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY
from ropewalk.spec import RopeSpec

#: {layer type: its spec, or None if it does not rotate}
Specs = dict[str, RopeSpec | None]
#: what a finder tells of a mistake: values for the texts of its row, and for its repair. `key` and
#: `value` are those that the finding reports; most repairs write `new` at `holder[name]`, where
#: `holder` is a dict of the config itself; with `fixable` False no repair is made
Facts = dict[str, Any]
#: the config keys of rope objects: that of transformers 5 and that of transformers 4
OBJECT_KEYS = ("rope_parameters", "rope_scaling")


@dataclass
class Examination:
    """One config while it is examined.

    root        the whole config, a copy
    length      tokens of the longest sequence that it will be used with; None: not said
    draft       the config of a draft model that serves beside it, a copy
    metadata    the metadata of a GGUF file, of which `root` is then made; None for other configs.
                The names of its keys begin with `architecture`
    duplicates  {key that the file gives more than once in one object: its values}
    language    the language of findings, "en" or "zh"
    examine     returns the diagnosis of another config, the draft; None: the draft is not examined
    not_json    why the file is no JSON, where it can be read all the same; "": it is JSON
    reaches     the longest length, in tokens, to which a repair has extended the rope, so that no
                second repair extends it; 0: none has
    withheld    ids of rows of mistakes.toml whose repair is not made, since its result has an error
                that the config did not have
    _known      (text of `root`, its specs or why there are none) when it was last read; None: not
                read yet
    """

    root: dict[str, Any]
    length: int | None = None
    draft: dict[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    architecture: str = ""
    duplicates: dict[str, list[Any]] = field(default_factory=dict)
    language: str = "en"
    examine: Callable[[Any], Any] | None = None
    not_json: str = ""
    reaches: int = 0
    withheld: set[str] = field(default_factory=set)
    _known: tuple[str, Specs | RopeError] | None = field(default=None, repr=False)

    @property
    def text(self) -> dict[str, Any]:
        """The part of the config that the text model reads, to be changed in place."""
        return text_of(self.root)

    @property
    def model_type(self) -> str | None:
        """The model type of the text part; where it has none, that of the whole config with
        "_text", as transformers names it. None if there is neither, or it is no text.
        """
        own = self.text.get("model_type")
        if own is None and self.text is not self.root and self.root.get("model_type") is not None:
            return f"{self.root['model_type']}_text"
        return own if isinstance(own, str) else None

    @property
    def family(self) -> Family:
        """What the model's code fixes."""
        return family_of(self.model_type)

    @property
    def own_code(self) -> bool:
        """Whether the config is read by code that comes with the weights, and by no known class.
        Such code may have scalings of its own.
        """
        return not self.family.known and "auto_map" in self.root

    def ropes(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (place, rope) of every rope, itself and not a copy; its place is the path of its
        key, such as "rope_parameters.full_attention" for the rope of one layer type.
        """
        found = []
        for key in OBJECT_KEYS:
            rope = self.text.get(key)
            if not isinstance(rope, dict):
                continue
            layers = layers_of(rope)
            found += [(f"{key}.{name}", each) for name, each in layers.items()] or [(key, rope)]
        return found

    def flat(self) -> dict[str, Any] | None:
        """Return the only rope object; None if there is none, are two, or is one rope for each
        layer type.
        """
        ropes = self.ropes()
        return ropes[0][1] if len(ropes) == 1 and "." not in ropes[0][0] else None

    def places(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (place, dict) of all that hold rotary keys: every rope, then with place "" the text
        part of the config.
        """
        yield from self.ropes()
        yield "", self.text

    def get(self, key: str) -> Any:
        """Return the value of a key in the first rope that has it, or else of the config; None if
        it is absent or null in all of them.
        """
        return next((o[key] for _, o in self.places() if o.get(key) is not None), None)

    @property
    def rope_type(self) -> str:
        """The rope_type of the first scaled rope, by its name in transformers; "default" if no rope
        is scaled.
        """
        renamed = {**keys.ROPE_TYPE_ALIASES, **self.family.renamed}
        names = [name for _, rope in self.ropes() if isinstance(name := type_of(rope), str)]
        return next((n for name in names if (n := renamed.get(name, name)) != "default"), "default")

    @property
    def served(self) -> int | None:
        """The served length that the config gives; None if it gives none."""
        # the standard key comes first; a value that is no whole number above 0 does not count
        return next((n for k in keys.LENGTH_KEYS if (n := whole(self.text.get(k)))), None)

    @property
    def trained(self) -> int | None:
        """The trained length: that of the config's own key, else that inside a rope; None if
        neither gives one.
        """
        outside = whole(self.text.get(TRAINED_LENGTH_KEY))
        return outside or whole(self.get(TRAINED_LENGTH_KEY))

    @property
    def factor(self) -> float | None:
        """The factor of the scaling; None if it is missing, not above 0, or 1e18 and more, with
        which lengths could not be computed.
        """
        factor = positive(self.get("factor"))
        return factor if factor is not None and factor < 1e18 else None

    @property
    def head_dim(self) -> int | None:
        """The width of a head; None if neither the config nor its family says it. With latent
        attention it is that of the part that rotates; of layer types with different widths, that of
        the first one that rotates.
        """
        for spec in (self.specs() or {}).values():
            if spec is not None:
                return spec.head_dim
        # nothing rotates, or the config cannot be read: what its sizes say all the same
        own = next((n for k in keys.HEAD_DIM_KEYS if (n := whole(self.text.get(k)))), None)
        size, heads = (
            next((n for k in names if (n := whole(self.text.get(k)))), None)
            for names in (keys.HIDDEN_SIZE_KEYS, keys.HEAD_COUNT_KEYS)
        )
        default = self.family.default("head_dim")
        if own is None and default is None and size and heads and size % heads == 0:
            return size // heads
        return own or default

    def specs(self) -> Specs | None:
        """Return the spec of each layer type; None if the config cannot be read."""
        found = self._read()
        return None if isinstance(found, RopeError) else found

    def error(self) -> RopeError | None:
        """Return why the config cannot be read; None if it can, or could without unknown keys."""
        found = self._read()
        return found if isinstance(found, RopeError) else None

    def _read(self) -> Specs | RopeError:
        """Return the specs, or why there are none; read again only if the config was changed."""
        # the text tells all changes in place, also of 1 to true, which are equal in Python
        text = repr(self.root)
        if self._known is None or self._known[0] != text:
            try:
                self._known = text, read_specs(self.root, "exact")[0]
            except RopeError as error:
                # it may be refused for unknown keys, which no code reads and which a row of its own
                # reports: try without them
                readable = self.with_(_without_unknown)
                found = None if readable == self.root else specs_of(readable)
                self._known = text, error if found is None else found
        return self._known[1]

    def state(self) -> str:
        """Return all that a repair may change, as text, so that two states can be compared."""
        return repr((self.root, self.draft, self.duplicates, self.not_json))

    def with_(self, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Return a copy of the config whose text part was changed by `change`."""
        root = copy.deepcopy(self.root)
        change(text_of(root))
        return root


def _without_unknown(text: dict[str, Any]) -> None:
    """Remove unknown keys from the ropes of a config in place, but no objects, which may be the
    ropes of layer types. `text` is its text part.
    """
    known = keys.inner_keys()
    for _, rope in Examination(text).ropes():
        for key in [key for key in rope if key not in known]:
            if not isinstance(rope[key], dict):
                del rope[key]


def nested_parts(root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a config, its text part, the text part of that and so on, each itself and not a
    copy.
    """
    parts = [root]
    for _ in range(8):  # no model nests them as deep
        part = next((parts[-1][k] for k in TEXT_PARTS if isinstance(parts[-1].get(k), dict)), None)
        if part is None:
            break
        parts.append(part)
    return parts


def text_of(root: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that the text model reads, itself and not a copy."""
    return nested_parts(root)[-1]


def layers_of(rope: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {layer type: its rope} of a rope object; {} if it is one rope for all layers. An
    object under any key but those that a rope itself has counts as the rope of a layer type.
    """
    objects = {key: value for key, value in rope.items() if isinstance(value, dict)}
    inner = keys.inner_keys() if objects else ()
    return {key: value for key, value in objects.items() if key not in inner}


def type_of(rope: Mapping[str, Any]) -> Any:
    """Return the rope_type of an object, or its older key `type`; None if it has neither."""
    return rope.get("rope_type") if rope.get("rope_type") is not None else rope.get("type")


def read_type(case: Examination, rope: Mapping[str, Any]) -> str | None:
    """Return the rope_type that this family's code takes an object for; None if the object has no
    type, or one that is no text.
    """
    name = type_of(rope)
    renamed = {**keys.ROPE_TYPE_ALIASES, **case.family.renamed}
    return renamed.get(name, name) if isinstance(name, str) else None


def specs_of(config: Any) -> Specs | None:
    """Return the spec of each layer type of a config; None if it cannot be read."""
    try:
        return read_specs(config, "exact")[0]
    except RopeError:
        return None


def number_of(value: Any) -> float | None:
    """Return a value if it is a number, which true and false are not; else None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def positive(value: Any) -> float | None:
    """Return a value if it is a finite number above 0; else None."""
    number = number_of(value)
    return number if number is not None and 0 < number < float("inf") else None


def whole(value: Any) -> int | None:
    """Return a value if it is an integer above 0, which 8192.0 is not; else None."""
    number = positive(value)
    return int(number) if isinstance(number, int) else None
