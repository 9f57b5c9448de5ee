"""The page's words: written in English, looked up here for Chinese; labels of figures are shared with `plots`."""

# ruff: noqa: RUF001 - full-width signs are right in Chinese

from __future__ import annotations

from collections.abc import Callable

from ropewalk.frequencies import Scaling
from ropewalk.plots.words import CHINESE as FIGURES_CHINESE

#: gives a text in the page's language, its {names} filled in
Say = Callable[..., str]

CHINESE: dict[str, str] = FIGURES_CHINESE | {
    "Back to the start": "恢复初始",
    "Changed from the preset.": "已偏离预设。",
    "Clocks": "时钟",
    "Code and link": "代码与链接",
    "Come round": "转满一圈",
    "Compare with a second spec": "与第二个规格比较",
    "Distance": "距离",
    "Drop a config.json": "拖入 config.json",
    "Each hand is one pair of dimensions. Fast pairs tell neighbours apart, slow ones far from near.":
        "每根指针是一对维度。快的对分辨相邻词元，慢的对分辨远近。",
    "Every line is one way of forming the angle; above the dashed one it is worse than rounding to bfloat16.":
        "每条线是一种计算角度的方式。虚线以上，误差大于 bfloat16 的舍入。",
    "First spec": "第一个规格",
    "How many pairs of dimensions turn.": "旋转的维度对数。",
    "Ladder": "频率阶梯",
    "Layer type": "层类型",
    "Let the clocks turn": "让时钟转动",
    "Magnitude": "幅度",
    "Map": "相似度图",
    "Memory of cos and sin": "cos 与 sin 的内存",
    "More": "更多",
    "One line of equal colour is one distance: only the distance counts, not where the two tokens stand.":
        "同色的一条线是同一距离：只看距离，不看两个词元在哪里。",
    "New angles": "新角度",
    "Pair": "维度对",
    "Pairs": "维度对数",
    "Pairs that go round within the trained length, unscaled.": "未缩放时，在训练长度内至少转满一圈的对。",
    "Pairs that reach angles that training never showed.": "在目标长度上到达训练中未见过的角度的对。",
    "Plane": "平面",
    "Position": "位置",
    "Precision": "精度",
    "Preset": "预设",
    "Report": "实验报告",
    "Rotary position embedding": "旋转位置编码",
    "Scaling": "缩放",
    "Second spec": "第二个规格",
    "Target length": "目标长度",
    "The link that restores this view": "恢复此视图的链接",
    "The code that reproduces this view": "重现此视图的代码",
    "The grey vector is (1, 0), the coloured one is it turned to the position; dots are the tokens before.":
        "灰色是 (1, 0)，彩色是同一向量转到该位置之后；圆点是它之前的词元。",
    "The report is at most {size} bytes; this one is larger: {path}": "报告最多 {size} 字节，此文件更大：{path}",
    "A pair that never finished a turn in training meets new angles beyond it; a scaling slows it down.":
        "训练中没转满一圈的对，超出训练长度就会遇到新角度；缩放让它慢下来。",
    "Trained length": "训练长度",
    "Two tokens further apart score lower on average; the curve is jagged, and a larger base stretches it.":
        "相距越远，平均得分越低；曲线参差不齐，底数越大拉得越长。",
    "Turned dimensions (0: all)": "旋转的维度（0：全部）",
    "View": "视图",
    "What the scaling multiplies q and k by.": "缩放对 q 与 k 所乘的倍数。",
    "form": "形式",
    "bytes": "字节",
    "plain": "原始",
    "served, scaled": "使用时（已缩放）",
    "zero": "零",
    # what the scalings say of themselves; one that is not here speaks English
    "omega_i = theta^(-2i/d), as RoFormer has it.": "omega_i = theta^(-2i/d)，即 RoFormer 的定义。",
    "Position interpolation: every pair slows by `factor`.": "位置插值：每对都放慢 `factor` 倍。",
    "NTK-aware: theta grows to theta * s^(d/(d-2)), so the slowest pair slows by s and the fastest keeps its pace.":
        "NTK：theta 变为 theta * s^(d/(d-2))，最慢的对放慢 s 倍，最快的不变。",
    "NTK-by-parts as first published: slow pairs interpolate, middle ones follow NTK, fast ones stay.":
        "最初的分段 NTK：慢的对插值，中间的对用 NTK，快的对不变。",
    "Dynamic NTK: theta grows with each sequence's own length past `original_length`, and is untouched below it.":
        "动态 NTK：长度超过 `original_length` 后 theta 随每个序列自身的长度增大，以内不变。",
    "YaRN: by-parts interpolation by `factor`, and a magnitude that sharpens attention.":
        "YaRN：按 `factor` 分段插值，并用幅度使注意力更尖锐。",
    "YaRN whose factor is each sequence's own length over `original_length`, never below 1.":
        "动态 YaRN：倍数是每个序列自身长度与 `original_length` 之比，不小于 1。",
    "LongRoPE: one searched factor per pair, `short_factor` up to `original_length` and `long_factor` beyond it.":
        "LongRoPE：每对一个搜索得到的倍数，`original_length` 以内用 `short_factor`，以外用 `long_factor`。",
    "Llama 3.1: wavelengths above L0/low slow by `factor`, those below L0/high stay, the rest blend.":
        "Llama 3.1：波长大于 L0/low 的放慢 `factor` 倍，小于 L0/high 的不变，其余混合。",
    "p-RoPE: the fastest `fraction` of the pairs turn, the rest stand still; pairs still span the whole head.":
        "p-RoPE：最快的 `fraction` 部分旋转，其余不动；维度对仍跨越整个头。",
    "theta_i = 1 / (1 + 2i): a study variant without geometric spacing.": "theta_i = 1 / (1 + 2i)：不按几何级数的研究变体。",
    "xPos: each pair also decays with distance, zeta_i^((m - n) / scale_base), zeta_i = (2i + 0.4 d) / (1.4 d).":
        "xPos：每对还随距离衰减，zeta_i^((m - n) / scale_base)，zeta_i = (2i + 0.4 d) / (1.4 d)。",
    "Your own radians per step, one for each pair.": "自定义每步弧度，每对一个。",
    "omega_i * exp(alpha_i) with trained alpha, zero at the start; `start` says where omega comes from.":
        "omega_i * exp(alpha_i)，alpha 可训练，初始为零；`start` 说明 omega 从何而来。",
}  # fmt: skip


def about(scaling: type[Scaling], language: str) -> str:
    """What a scaling says of itself, in its first line."""
    line = (scaling.__doc__ or scaling.__name__).strip().splitlines()[0]
    return CHINESE.get(line, line) if language == "zh" else line


def speaker(language: str) -> Say:
    """The function that says a text of the page in a language."""

    def say(text: str, **values: object) -> str:
        return (CHINESE[text] if language == "zh" else text).format(**values)

    return say
