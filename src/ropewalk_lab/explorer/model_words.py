"""Chinese translations of the texts in the view of a model, by English text."""

# ruff: noqa: RUF001 - full-width punctuation is right in Chinese

from __future__ import annotations

CHINESE: dict[str, str] = {
    (" Skipped positions put the same distance between them as a longer text does, without its "
        "tokens."):
        "跳过的位置使两者相距与在长文本中一样远，却不需要那些词元。",
    "A pass key is stated in the text and asked for at its end.": "文本中写有一个密码，结尾处要求模型说出它。",  # noqa: E501
    "A text of your own": "自己输入的文本",
    "attention": "注意力",
    "Attention of one head": "一个头的注意力",
    "Before and after": "前后对比",
    "Depth of the pass key: 0 is the start": "密码的深度（0 表示开头）",
    "Factor": "缩放倍数",
    "Filler sentences": "填充句",
    "Head": "头",
    "Last position": "最后的位置",
    "Layer": "层",
    "Let a model read": "让模型来读",
    "Loading the model; a file of 100 MB takes some seconds ...": "正在加载模型；100 MB 的文件需要数秒……",
    "Loss by token of the text": "各词元处的损失",
    "Mean loss, nats per token": "平均损失（nat/词元）",
    "Model": "模型",
    "Model: the path of a .gguf file or of a Hugging Face folder": ("模型：.gguf 文件或 Hugging Face "
        "文件夹的路径"),
    "nats per token": "损失（nat/词元）",
    "Positions skipped before the question": "提问之前跳过的位置数",
    "Probability of the pass key": "答出密码的概率",
    "Python's documentation": "Python 文档",
    "Reading: layer {done} of {total}": "正在阅读：第 {done} 层，共 {total} 层",
    "Text": "文本",
    ("This page is hosted, so it reads no file of its machine; here is a tiny model with random "
        "weights."):
        "本页面是托管的，不读取所在机器上的文件；这里用的是一个随机权重的微型模型。",
    "To read with a model of your own, run `ropewalk explore` on your machine.":
        "要用自己的模型，请在自己的机器上运行 `ropewalk explore`。",
    "token of the text": "文本中的词元",
    "Tokens": "词元数",
    "Trained length: {tokens} tokens": "训练长度：{tokens} 个词元",
    "`ropewalk lab fetch smollm2` downloads a model of 93 MB; then enter smollm2.":
        "`ropewalk lab fetch smollm2` 会下载一个 93 MB 的模型；然后在此输入 smollm2。",
    "`tiny` is a model with random weights, only to try the page.": "`tiny` 是随机权重的模型，只用于试用本页面。",  # noqa: E501
}  # fmt: skip
