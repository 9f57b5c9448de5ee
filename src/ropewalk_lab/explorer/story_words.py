"""Chinese translations of the story's texts, by English text."""

# ruff: noqa: RUF001 - full-width punctuation is right in Chinese

from __future__ import annotations

CHINESE: dict[str, str] = {
    " Fast pairs distinguish neighbours, slow pairs distinguish near from far.": "快速维度对区分相邻的词元，慢速维度对区分远近。",  # noqa: E501
    "0.1 rad off after {tokens} tokens": "{tokens} 个词元后偏差超过 0.1 弧度",
    "for image and video tokens only": "仅影响图像和视频词元",
    "`none` computes every angle when it is needed; `two-level` keeps two small tables.": (
        "`none` 在用到时才计算角度；`two-level` 只保存两张小表。"
    ),
    "A model was trained on {trained} tokens and now reads {served}. What is new to it?": (
        "模型的训练长度是 {trained} 个词元，现在要读 {served} 个。对它来说，什么是新的？"
    ),
    (
        "A remedy that slows the fastest pair blurs neighbours; one that leaves the slowest alone "
        "leaves new angles."
    ): "减慢最快的维度对，相邻词元就难以区分；不减慢最慢的维度对，新角度就仍然存在。",
    (
        "The length costs both; a scaling neither. Most libraries compute the angle in float32 and "
        "store one row per token."
    ): "代价来自长度，而不是缩放方法。多数库用 float32 计算角度，并为每个词元保存一行。",
    "A scaling slows pairs down, so that their angles stay in the trained range": "缩放减慢维度对的旋转，使角度保持在训练过的范围内",  # noqa: E501
    "all logits times {ratio}": "所有 logits 乘以 {ratio}",
    "Back": "上一步",
    "Beyond the trained length": "超出训练长度",
    "compared with transformers": "与 transformers 相比",
    "cos and sin of pair {pair}": "第 {pair} 对的 cos 与 sin",
    "does not support it, or the result is not known": "不支持，或结果未知",
    "Each dial is one pair of dimensions; its hand turns as the model reads.": "每个表盘代表一对维度；模型往后读，指针随之转动。",  # noqa: E501
    "Each remedy": "各种方法",
    "Engine": "推理引擎",
    "Every pair has a speed of its own": "每对维度都有自己的转速",
    "Fast and slow pairs": "快与慢的维度对",
    "Fast pairs turn more often than a picture can show; they are slowed here.": "快速维度对转得太快，画面无法表现，这里放慢了它们。",  # noqa: E501
    "Fastest pair, slowed by": "最快的一对减慢",
    "Grey: angles seen in training. Red: angles that the model has never seen.": "灰色：训练中见过的角度。红色：模型从未见过的角度。",  # noqa: E501
    "Next": "下一步",
    "No config can name {name}: engines cannot read it. Choose another scaling.": (
        "config.json 无法表示 {name}，推理引擎读不到它。请选择其他缩放方法。"
    ),
    "Pair {pair} rotates by {radians} radians per token; a turn takes {turn} tokens.": (
        "第 {pair} 对每个词元转 {radians} 弧度，{turn} 个词元转满一圈。"
    ),
    "Play freely": "自由探索",
    "Positions become angles": "位置变成角度",
    "read: {tokens} tokens": "读到：{tokens} 个词元",
    (
        "Read in the engines' sources and checked by runs; `ropewalk audit` names each rule and "
        "its evidence."
    ): "规则来自各引擎的源码，并通过实际运行引擎核对；`ropewalk audit` 会列出每条规则及其依据。",
    "Shaded: trained. Beyond it, slow pairs take new values": "灰底：训练长度；超出后慢速维度对取到新的值",
    "Slow pairs leave the angles they were trained on": "慢速维度对离开了训练过的角度",
    "Slowest pair, slowed by": "最慢的一对减慢",
    "Step": "步骤",
    "The config.json they read": "各引擎读取的 config.json",
    "The fastest pair turns once in {shortest} tokens, the slowest once in {longest}.": (
        "最快的一对每 {shortest} 个词元转一圈，最慢的每 {longest} 个词元转一圈。"
    ),
    "The first dimension of the pair follows the cosine, the second the sine.": "维度对的第一维按余弦变化，第二维按正弦变化。",  # noqa: E501
    "The position rotates every pair of q and k by an angle": "位置使 q 和 k 的每对维度旋转一个角度",
    "The question": "问题",
    "the reference": "参照",
    "the same": "相同",
    (
        "The score of a query and a key depends only on the difference of their angles: on their "
        "distance."
    ): "查询与键的分数只取决于两者角度之差，也就是两者的距离。",
    "trained: {tokens} tokens": "训练：{tokens} 个词元",
    "value": "值",
    "What engines make of it": "引擎如何处理",
    "What engines make of the same config": "同一个配置，各引擎如何处理",
    "What it costs": "代价",
    "What it costs in precision and memory": "精度与内存上的代价",
    "{name}: no pair reaches an angle that training did not show.": "{name}：没有维度对到达训练中未出现的角度。",  # noqa: E501
    "{name}: {new} of {pairs} pairs reach angles that training never showed.": (
        "{name}：{pairs} 对维度中有 {new} 对到达训练中从未出现的角度。"
    ),
    "{new} of {pairs} pairs reach angles that training never showed. Press yarn.": (
        "{pairs} 对维度中有 {new} 对到达训练中从未出现的角度。请点击 yarn。"
    ),
    "{pairs} pairs differ, from pair {first} on": "{pairs} 对维度不同，从第 {first} 对开始",
    (
        "{slow} of {pairs} pairs complete no turn within {trained} tokens; beyond, their angles "
        "are new."
    ): "{pairs} 对维度中有 {slow} 对在 {trained} 个词元内转不满一圈；超出后，它们的角度是新的。",
}
