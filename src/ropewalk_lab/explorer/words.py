"""Chinese translations of the page's texts, by English text; labels of figures come from `plots`."""

# ruff: noqa: RUF001 - full-width punctuation is right in Chinese

from __future__ import annotations

from collections.abc import Callable

from ropewalk.frequencies import Scaling
from ropewalk_lab.explorer.model_words import CHINESE as MODEL_CHINESE
from ropewalk_lab.explorer.story_words import CHINESE as STORY_CHINESE
from ropewalk_lab.plots.words import CHINESE as FIGURES_CHINESE

#: returns a text in the language of the page, with its {names} replaced
Translate = Callable[..., str]

CHINESE: dict[str, str] = (
    FIGURES_CHINESE
    | STORY_CHINESE
    | MODEL_CHINESE
    | {
        (
            "A pair that completes no full turn in training reaches new angles beyond it; a "
            "scaling slows it down."
        ): "训练中未转满一圈的维度对，超出训练长度后会到达新的角度；缩放会减慢它的旋转。",
        "Animate the clocks": "播放时钟动画",
        "bfloat16 positions": "bfloat16 位置",
        "bytes": "字节数",
        "Changed from the preset.": "已修改，与预设不同。",
        "Clocks": "时钟",
        "Code and link": "代码与链接",
        "Compare with a second spec": "与第二个配置比较",
        "Distance": "距离",
        "Drop a config.json": "上传 config.json",
        (
            "Each hand is one pair of dimensions. Fast pairs distinguish neighbours, slow pairs "
            "distinguish near from far."
        ): "每根指针代表一对维度。快速维度对区分相邻的词元，慢速维度对区分远近。",
        (
            "Each line is one method of computing the angle; above the dashed line its error "
            "exceeds rounding to bfloat16."
        ): "每条线是一种计算角度的方法；在虚线以上，误差超过 bfloat16 的舍入误差。",
        "First spec": "第一个配置",
        "float32 angle": "float32 角度",
        "float32 angle, bfloat16 table": "float32 角度，bfloat16 表",
        "float32 angle, float16 table": "float32 角度，float16 表",
        "form": "存储形式",
        "Full turns": "转满一圈",
        "Ladder": "频率阶梯",
        "Layer type": "层类型",
        (
            "Lines of equal colour have equal distance: only the distance counts, not the "
            "positions of the two tokens."
        ): "颜色相同的线对应相同的距离：结果只取决于距离，与两个词元的具体位置无关。",
        "Magnitude": "幅度",
        "Map": "相似度图",
        "Memory of cos and sin": "cos 与 sin 占用的内存",
        "More": "更多",
        "New angles": "新角度",
        "Number of rotated pairs of dimensions.": "参与旋转的维度对数。",
        (
            "On average, tokens further apart score lower; the curve is jagged, and a larger base "
            "stretches it."
        ): "平均而言，词元相距越远，分数越低；曲线并不平滑，底数越大，衰减越慢。",
        "Pair": "维度对",
        "Pairs": "维度对数",
        "Pairs that complete a turn within the trained length, without scaling.": "不缩放时，在训练长度内至少转满一圈的维度对数。",  # noqa: E501
        "Pairs that reach angles which training never showed.": "在目标长度内会到达训练中未出现的角度的维度对数。",  # noqa: E501
        "plain": "原始",
        "Plane": "平面",
        "Position": "位置",
        "Precision": "精度",
        "Preset": "预设",
        "Report": "实验报告",
        "Reset": "重置",
        "ropewalk, exact": "ropewalk，精确",
        "ropewalk, float32 frequencies": "ropewalk，float32 频率",
        "Rotary position embedding": "旋转位置编码",
        "Rotated dimensions (0: all)": "旋转的维度数（0 表示全部）",
        "Scaling": "缩放方法",
        "Second spec": "第二个配置",
        "Save as PNG": "保存为 PNG",
        "Save as SVG": "保存为 SVG",
        "Save the picture": "保存图片",
        "served with {name}": "目标长度内（{name}）",
        "Story": "导览",
        "Target length": "目标长度",
        "The code that reproduces this view": "生成此视图的代码",
        "The factor by which the scaling multiplies q and k.": "缩放方法给 q 和 k 乘上的系数。",
        (
            "The grey vector is (1, 0); the coloured one is the same vector rotated to the "
            "position; dots are earlier tokens."
        ): "灰色向量是 (1, 0)，彩色向量是它旋转到该位置的结果；圆点是之前的词元。",
        "The link that restores this view": "恢复此视图的链接",
        "The report is larger than {size} bytes: {path}": "报告超过 {size} 字节：{path}",
        "Trained length": "训练长度",
        "View": "视图",
        "zero": "零",
        "{form}, in motion": "{form} 动图",
        # the first docstring line of every scaling; a line without a translation is shown in
        # English
        "Unscaled: omega_i = theta^(-2i/d), as in RoFormer.": (
            "不缩放：omega_i = theta^(-2i/d)，即 RoFormer 的定义。"
        ),
        "Position interpolation: every pair slows by `factor`.": "位置插值：所有维度对都减慢到 1/`factor`。",
        (
            "NTK-aware: theta grows to theta * s^(d/(d-2)), so the slowest pair slows by s and the "
            "fastest is unchanged."
        ): "NTK：theta 变为 theta * s^(d/(d-2))，最慢的维度对减慢到 1/s，最快的不变。",
        (
            "NTK-by-parts as first published: slow pairs are interpolated, middle pairs follow "
            "NTK, fast pairs are unchanged."
        ): "最初的分段 NTK：慢速维度对插值，中速的用 NTK，快速的不变。",
        (
            "Dynamic NTK: theta is unchanged up to `original_length`; beyond it, theta grows with "
            "the length of each sequence."
        ): (
            "动态 NTK：序列长度超过 `original_length` 后，theta "
            "随各序列自身的长度增大；不超过时不变。"
        ),
        "YaRN: by-parts interpolation by `factor`, and a magnitude that sharpens attention.": (
            "YaRN：按 `factor` 分段插值，并通过幅度使注意力更集中。"
        ),
        "YaRN whose factor is each sequence's own length over `original_length`, never below 1.": (
            "动态 YaRN：缩放倍数是各序列自身长度与 `original_length` 之比，不小于 1。"
        ),
        (
            "LongRoPE: each pair slows by its own factor, from `short_factor` up to "
            "`original_length` and `long_factor` beyond it."
        ): (
            "LongRoPE：每对维度各有一个搜索得到的倍数；不超过 `original_length` 时用 `short_factor`，超过时用 "  # noqa: E501
            "`long_factor`。"
        ),
        (
            "Llama 3.1: pairs with a wavelength above L0/low slow by `factor`, those below L0/high "
            "do not, those between are blended."
        ): (
            "Llama 3.1：波长大于 L0/low 的维度对减慢到 1/`factor`，小于 L0/high "
            "的不变，其余平滑过渡。"
        ),
        "p-RoPE: only the fastest `fraction` of the pairs rotate; pairs still span the whole head.": (
            "p-RoPE：只有最快的 `fraction` 部分维度对旋转；维度对仍跨越整个头。"
        ),
        "omega_i = 1 / (1 + 2i): frequencies without geometric spacing, for studies.": (
            "omega_i = 1 / (1 + 2i)：用于研究的变体，频率不按几何级数排列。"
        ),
        (
            "RIFLEx: one pair slows so that `frames` steps are `share` of its turn, and a longer "
            "video does not repeat itself."
        ): "RIFLEx：减慢一对维度，使 `frames` 步只占它一圈的 `share`，更长的视频便不会重复。",
        (
            "xPos: scores also decay with distance, in pair i by zeta_i^((m - n) / scale_base), "
            "zeta_i = (2i + 0.4 d) / (1.4 d)."
        ): (
            "xPos：每对维度还随距离衰减，zeta_i^((m - n) / scale_base)，zeta_i = (2i + 0.4 d) / (1.4 "
            "d)。"
        ),
        "Frequencies given by the caller, in radians per step, one for each pair.": "自定义每步的弧度，每对维度一个值。",  # noqa: E501
        (
            "omega_i * exp(alpha_i) with learned alpha_i, initially 0; omega_i are the frequencies "
            "of the scaling `start`."
        ): "omega_i * exp(alpha_i)，alpha 可训练，初始为零；omega 取自缩放 `start`。",
        (
            "CoPE: the slowest `pairs` pairs of `inner` taper off to frequency 0; with soft=False "
            "they do not rotate at all."
        ): (
            "CoPE：`inner` 中最慢的 `pairs` 对维度的频率平滑降到 0；soft=False "
            "时这些维度对完全不旋转。"
        ),
        (
            "LeRoPE: omega_i * exp(alpha_i), omega_i from `inner` and alpha_i from a trained "
            "checkpoint; zeros change nothing."
        ): (
            "LeRoPE：omega_i * exp(alpha_i)，omega 取自缩放 `inner`，alpha "
            "来自训练好的检查点；全为零时不变。"
        ),
    }
)


def about(scaling: type[Scaling], language: str) -> str:
    """Return the first docstring line of a scaling, translated if the language is zh."""
    paragraph = (scaling.__doc__ or scaling.__name__).strip().split("\n\n")[0]
    line = " ".join(paragraph.split())
    return CHINESE.get(line, line) if language == "zh" else line


def translator(language: str) -> Translate:
    """Return a function that translates the page's texts to a language."""

    def translate(text: str, **values: object) -> str:
        return (CHINESE[text] if language == "zh" else text).format(**values)

    return translate
