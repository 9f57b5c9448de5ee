"""The vectors are what their generator makes, valid by their schema, and right by other arithmetic."""

import json
import warnings
from decimal import Decimal
from pathlib import Path

import jsonschema
import pytest
from conformance_generator import generate
from gguf_samples import read_ropes_of

import ropewalk as rw
from ropewalk_conformance import definition, groups, load
from ropewalk_conformance.functions import KINDS
from ropewalk_conformance.mistakes import agree
from ropewalk_conformance.vectors import folder, index

ROOT = Path(__file__).resolve().parents[2]
