"""The decode kernels: laws on a GPU (test_triton.py has them in the interpreter), tiles, and
machine code for sm_90.
"""

import re
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close as close

import ropewalk as rw
from another_process import run_tests
from ropewalk.kernels.decode_step import definition
from ropewalk.kernels.decode_step.config import (
    MOST_TILE_ROWS,
    ProductTile,
    few_programs,
    library_is_faster,
    pick_keys,
    pick_qkv_tile,
    pick_splits,
    pick_tile,
)
from ropewalk.kernels.norm_rotation import KVSlots, QKNorm
from torch_release import needs_triton_3_6


@pytest.mark.gpu
def test_the_kernels_keep_their_laws_on_the_gpu():
    laws = [
        Path(__file__).parent / name for name in ("interpreted_decode.py", "interpreted_qkv.py")
    ]
    run_tests(laws, full=True, TRITON_INTERPRET="0")


def test_the_definitions_equal_torchs_own_operators():
    torch.manual_seed(1)
    random = partial(torch.randn, dtype=torch.float64)
    x, weight, bias, residual = random(3, 8), random(6, 8), random(6), random(3, 6)
    norm = definition.Norm(random(8), 0.1)
    normed = F.rms_norm(x, (8,), norm.weight, norm.eps)
    close(definition.normed(x, norm), normed)
    linear = F.linear(normed, weight, bias)
    got = definition.product(x, weight, norm=norm, bias=bias, residual=residual)
    close(got, linear + residual)
    got = definition.product(x, weight, norm=norm, bias=bias, gate=True)
    close(got, F.silu(linear[:, :3]) * linear[:, 3:])
    q, k, v = random(2, 6, 4), random(2, 3, 9, 4), random(2, 3, 9, 4)
    first, last, index = torch.tensor([0, 5]), torch.tensor([7]), torch.arange(9)
    for window in (None, 4):
        seen = (index >= first[:, None]) & (index < 7) & (index >= 7 - (window or 7))
        options = {"attn_mask": seen[:, None, None], "scale": 0.3, "enable_gqa": True}
        want = F.scaled_dot_product_attention(q[:, :, None], k, v, **options)
        close(definition.attend(q, k, v, first, last, 0.3, window), want[:, :, 0])
    logits = torch.tensor([[1.0, 5.0, 5.0], [-1.0, -2.0, -3.0], [torch.nan] * 3])
    tokens, embedded = definition.next_token(logits, weight)
    assert tokens.tolist() == [1, 0, 0]
    assert torch.equal(embedded, weight[[1, 0, 0]])


#: shared memory of one program on Hopper, on an A100 and on consumer GPUs since Ampere
SHARED = (227 << 10, 163 << 10, 99 << 10)


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 64])
@pytest.mark.parametrize("depth", [64, 1024, 4096, 14336])
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("element_size", [2, 4])
def test_tiles_fit_into_shared_memory(rows, depth, shared, element_size):
    counts = (256, 4096, 9728, 14336, 151936)
    tiles = [
        pick_tile(rows, columns, depth, gate, 132) for columns in counts for gate in (False, True)
    ]
    pick = partial(pick_qkv_tile, rows, depth, available=132)
    if rows == 1:
        assert pick(48, 128, norm=True, head_norm=False).rows == 1
    tiles += [
        pick(heads, head_dim, norm=False, head_norm=head_norm)
        for heads in (1, 48, 112)
        for head_dim in (64, 80, 256)
        for head_norm in (False, True)
    ]
    for tile in filter(None, tiles):
        assert (tile.rows == 1) == (rows == 1)
        assert tile.rows == 1 or rows <= tile.rows <= MOST_TILE_ROWS
        fitted = tile.fitted(element_size, shared)
        assert (fitted.rows, fitted.columns, fitted.warps) == (tile.rows, tile.columns, tile.warps)
        # x and two blocks of weights in every stage; one row uses registers instead
        needed = (tile.rows + 2 * tile.columns) * tile.depth * element_size * tile.stages
        assert (fitted == tile) == (tile.rows == 1 or needed <= shared)
        if fitted != tile:
            stage = (fitted.rows + 2 * fitted.columns) * fitted.depth * element_size
            assert (
                fitted.stages * stage <= shared < (fitted.stages + 1) * stage
                or fitted.stages == tile.stages
            )
            assert fitted.stages >= 3


@pytest.mark.parametrize(
    ("depth", "heads", "head_dim", "most"),
    [
        (4096, 48, 128, 64),  # 96 programs for 132 multiprocessors
        (4096, 112, 128, 64),  # 224 programs, two on most multiprocessors
        (4096, 80, 128, 32),  # 160: most multiprocessors have one, some two
        (4096, 112, 192, 32),  # 336: 72 are left when 264 have run
        (2560, 64, 80, 32),  # a head of 40 pairs leaves half of its second tile empty
        (1024, 32, 128, 256),  # 64 pairs of each head, four tiles of rows: 128 programs
        (2048, 48, 64, 128),  # 32 pairs of each head, two tiles of rows: 96 programs
        (2048, 40, 128, 64),  # 160 programs of 32 pairs; 64 pairs would be too many weights
        (2560, 32, 64, 64),  # 2560 terms are more than a program of small tiles may sum
        (576, 15, 64, 512),  # 32 pairs of each head, eight tiles of rows: 120 programs
        (1536, 18, 96, 192),  # 32 pairs of 48, twice: 36 programs for each tile of rows
    ],
)
def test_tokens_are_one_launch_if_the_programs_keep_the_gpu_busy_and_are_short(
    depth, heads, head_dim, most
):
    pick = partial(pick_qkv_tile, norm=False, head_norm=False, available=132)
    launches = [pick(rows, depth, heads, head_dim) is not None for rows in range(1, 1025)]
    assert launches == [rows <= most for rows in range(1, 1025)]


@pytest.mark.parametrize("rows", [65, 128, 256])
def test_a_head_that_is_normed_has_tiles_of_32_columns(rows):
    tile = pick_qkv_tile(rows, 576, 15, 64, norm=False, head_norm=True, available=132)
    assert tile is not None
    assert tile.columns == 32


def test_a_tile_has_at_least_one_stage():
    assert ProductTile(64, 64, stages=4).fitted(4, 1 << 10) == ProductTile(64, 64, 16, stages=1)


@pytest.mark.parametrize(("few", "programs"), [(True, 1), (False, 3)])
@pytest.mark.parametrize("element_size", [2, 4])
@pytest.mark.parametrize("dims", [16, 64, 128, 256])
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("part", [64, 1023, 1024, 1 << 20])
def test_the_tiles_of_attention_fit_into_shared_memory(
    few, programs, dims, element_size, shared, part
):
    keys, stages, _ = pick_keys(few, dims, element_size, shared, part)
    tiles = stages * 2 * keys * dims * element_size  # of k and v
    assert programs * tiles <= shared or keys == 16
    assert keys >= 64 or programs * 2 * tiles > shared


def test_tiles_of_keys_are_large_only_for_few_programs_that_read_several():
    pick = partial(pick_keys, element_size=2, shared_bytes=SHARED[0])
    assert pick(True, 64, part=1024) == (256, 3, 4)
    assert pick(True, 64, part=1023) == (64, 3, 8)
    assert pick(True, 128, part=512) == (128, 3, 4)
    assert pick(True, 128, part=511) == (64, 3, 8)
    assert pick(True, 256, part=1 << 20) == (64, 3, 8)
    assert pick(False, 64, part=1 << 20)[0] == 64


@needs_triton_3_6
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_compiled_for_a_consumer_gpu_the_kernels_fit_into_its_shared_memory(dtype, monkeypatch):
    from hopper import CompileInstead

    from ropewalk.kernels.decode_step import launch
    from ropewalk.kernels.decode_step.workspace import DecodeWorkspace
    from ropewalk.kernels.qkv import launch as qkv

    built: list = []
    zeros = partial(torch.zeros, dtype=dtype)
    for module, name in ((launch, "_PRODUCT"), (qkv, "_QKV"), (launch, "_ATTEND")):
        compiled = CompileInstead(getattr(module, name), built, capability=89)
        monkeypatch.setattr(module, name, compiled)
        monkeypatch.setattr(module, "shared_memory", lambda device: SHARED[-1])
    index, keys = torch.zeros(64, dtype=torch.int64), zeros(1, 8, 256, 128)
    cache = KVSlots(keys.transpose(1, 2), keys.clone().transpose(1, 2))
    launch.product(zeros(64, 1024), zeros(16384, 1024), zeros(64, 8192), gate=True)
    for rows in (2, 64):
        q, workspace = zeros(rows, 32, 128), DecodeWorkspace(rows, 32, 8, 128, device=index.device)
        where = (cache, index[:rows], index[:rows], rw.RopeSpec(128))
        qkv.qkv_product(zeros(rows, 1024), zeros(6144, 1024), q, *where)
        launch.attend(
            q,
            keys.expand(rows, -1, -1, -1),
            keys.expand(rows, -1, -1, -1),
            q,
            index,
            index[:1],
            0.1,
            workspace,
        )
        launch.product(
            zeros(rows, 4096), zeros(1024, 4096), zeros(rows, 1024), residual=zeros(rows, 1024)
        )
    # in float32, torch's product computes those with a residual
    assert len(built) == (5 if dtype == torch.float32 else 7)
    shared = [(name, code.metadata.shared) for name, code in built]
    assert all(size <= SHARED[-1] for _, size in shared), shared


@pytest.fixture
def _h200(monkeypatch):
    monkeypatch.setattr("ropewalk.kernels.decode_step.config.multiprocessors", lambda device: 132)


@pytest.mark.usefixtures("_h200")
def test_splits_grow_with_the_capacity_and_shrink_with_the_batch():
    """With up to 132 pairs of a row and a key head, there are at most as many programs as
    multiprocessors; with more, at least twice as many if the capacity allows.
    """
    device = torch.device("cpu")
    assert [pick_splits(1, 8, capacity, device) for capacity in (64, 256, 512, 1 << 20)] == [
        1,
        4,
        8,
        16,
    ]
    assert [pick_splits(rows, 8, 1 << 20, device) for rows in (2, 3, 4, 8, 16)] == [8, 4, 4, 2, 1]
    assert [pick_splits(17, 8, capacity, device) for capacity in (256, 512, 1024, 1 << 20)] == [
        1,
        2,
        2,
        2,
    ]
    assert [pick_splits(rows, 8, 1 << 20, device) for rows in (32, 33, 34)] == [2, 1, 1]
    assert [few_programs(rows, 8, device) for rows in (1, 16, 17)] == [True, True, False]
    assert [few_programs(rows, 4, device) for rows in (33, 34)] == [True, False]


@pytest.mark.usefixtures("_h200")
def test_more_than_16_parts_have_at_least_256_keys():
    device = torch.device("cpu")
    capacities = (512, 1024, 4096, 8192, 16384, 1 << 20)
    assert [pick_splits(1, 1, capacity, device) for capacity in capacities] == [
        8, 16, 16, 32, 64, 64,
    ]  # fmt: skip
    assert [pick_splits(1, 4, capacity, device) for capacity in (4096, 8192, 16384)] == [16, 32, 32]


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "size", "gate", "library"),
    [
        (1, 32768, 1 << 20, 4, False, False),
        (1, 32769, 1024, 2, False, True),
        (2, 1024, 4096, 2, False, False),
        (2, 1024, 4097, 2, False, True),
        (64, 32768, 1024, 2, False, False),
        (2, 32769, 1024, 2, False, True),
        (2, 1024, 1024, 4, False, True),
        (128, 1024, 1024, 2, False, False),
        (129, 1024, 1024, 2, False, True),
        (65, 4096, 1024, 2, False, True),
        (64, 151936, 1 << 20, 4, True, False),
        (65, 64, 64, 2, True, True),
    ],
)
def test_torchs_product_computes_many_rows_long_sums_the_logits_and_float32(
    rows, columns, depth, size, gate, library
):
    assert library_is_faster(rows, columns, depth, size, gate) == library


@pytest.mark.parametrize("rows", [1, 2, 16, 64, 65])
def test_the_tile_of_an_invariant_product_divides_the_parts_of_its_sums(rows):
    from ropewalk.kernels.invariant import launch

    for columns, depth in product((64, 1024, 4096, 4097), (40, 896, 1024, 3072, 14336)):
        part = launch.part_of(columns, depth)
        assert (part == 0) == (columns > 4096 or columns * depth > 1 << 25)
        assert 8 * part >= depth or not part
        for gate in (False, True):
            tile = launch.product_tile(rows, columns, depth, gate, 132)
            assert part % tile.depth == 0
        for norm in (False, True):
            weight_rows, tile_depth, warps = launch.one_row_tile(part, columns, norm)
            # a thread has the weights of two steps in registers, or of the only one
            steps = 2 if tile_depth < part else 1
            assert steps * weight_rows * 8 * tile_depth <= 4 * 32 * warps * 64


@needs_triton_3_6
def test_the_machine_code_of_invariant_products_has_no_spills(tmp_path, monkeypatch):
    from hopper import CompileInstead, registers_and_spills

    from ropewalk.kernels.decode_step import launch as decode_launch
    from ropewalk.kernels.invariant import launch

    built: list = []
    zeros = partial(torch.zeros, dtype=torch.bfloat16)
    for module, name in ((launch, "_ONE_ROW"), (decode_launch, "_PRODUCT")):
        compiled = CompileInstead(getattr(module, name), built, PDL=True)
        monkeypatch.setattr(module, name, compiled)
    norm = decode_launch.Norm(zeros(2048), 1e-6)
    for depth, columns in ((2048, 3072), (8192, 2048), (3072, 1024)):
        x, weight = zeros(1, depth), zeros(columns, depth)
        launch.product_into(x, weight, zeros(1, columns), norm=norm if depth == 2048 else None)
    x, weight = zeros(64, 2048), zeros(4096, 2048)
    launch.product_into(x, weight, zeros(64, 2048), gate=True)
    assert [name for name, _ in built] == [*["product_of_one_row"] * 3, "product"]
    assert all(registers_and_spills(code, tmp_path)[1] == 0 for _, code in built)


@needs_triton_3_6
def test_the_machine_code_has_no_spills_and_qkv_stores_eight_dims_at_once(tmp_path):
    from hopper import CompileInstead, machine_code, registers_and_spills

    from ropewalk.kernels.decode_step import launch
    from ropewalk.kernels.decode_step.workspace import DecodeWorkspace
    from ropewalk.kernels.qkv import launch as qkv

    built: list = []
    zeros = partial(torch.zeros, dtype=torch.bfloat16)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PRODUCT", "_ATTEND", "_NEXT"):
            patch.setattr(launch, name, CompileInstead(getattr(launch, name), built, PDL=True))
        patch.setattr(qkv, "_QKV", CompileInstead(qkv._QKV, built, PDL=True))
        weight, norm = zeros(6144, 4096), launch.Norm(zeros(4096), 1e-6)
        keys = zeros(1, 8, 256, 128)
        cache = KVSlots(keys.transpose(1, 2), keys.clone().transpose(1, 2))
        index = torch.zeros(64, dtype=torch.int64)
        launch.product(zeros(1, 4096), weight, zeros(1, 6144), norm=norm)
        launch.product(zeros(1, 4096), weight, zeros(1, 3072), norm=norm, gate=True)
        for rows in (16, 64):
            launch.product(zeros(rows, 4096), weight, zeros(rows, 3072), gate=True)
            launch.product(zeros(rows, 1024), zeros(16384, 1024), zeros(rows, 8192), gate=True)
        head_norm, wide = QKNorm(zeros(128), zeros(128)), len(built) + 1
        for rows, concurrent in ((1, False), (16, True), (64, True), (64, False)):
            patch.setattr(
                qkv,
                "can_run_concurrently",
                lambda programs, tile, x, concurrent=concurrent: concurrent,
            )
            qkv.qkv_product(
                zeros(rows, 4096),
                weight,
                zeros(rows, 32, 128),
                cache,
                index[:rows],
                index[:rows],
                rw.RopeSpec(128),
                head_norm=None if rows == 1 else head_norm,
                workspace=DecodeWorkspace(rows, 32, 8, 128, device=index.device),
            )
        small = KVSlots(*(torch.zeros(4, 8, 128, dtype=torch.float8_e4m3fn) for _ in range(2)))
        qkv.qkv_product(
            zeros(1, 4096), weight, zeros(1, 32, 128), small, index[:1], index[:1], rw.RopeSpec(128)
        )
        q, workspace = (
            zeros(1, 32, 128),
            DecodeWorkspace(1, 32, 8, 128, splits=4, device=index.device),
        )
        launch.attend(q, keys, keys, q.clone(), index[:1], index[:1], 0.1, workspace)
        workspace = DecodeWorkspace(1, 1, 1, 2, vocabulary_splits=64, device=index.device)
        launch.next_token(
            zeros(1, 128256), zeros(128256, 4096), index[:1], zeros(1, 4096), index[:3], workspace
        )
    spilled = [(name, registers_and_spills(code, tmp_path)[1]) for name, code in built]
    assert len(spilled) == 13
    assert not any(count for _, count in spilled), spilled
    for _, code in built[wide : wide + 2]:
        stores = re.findall(r"STG\.E\S*", machine_code(code, tmp_path, "-sass"))
        # the second are the sums of squares
        assert set(stores) == {
            "STG.E.128",
            "STG.E.STRONG.GPU",
        }
