"""Texts to try tokenizers and stores on."""

from rope_lab.data.lines import parse_line, read_lines
from rope_lab.data.prepare import SAMPLE_DIR


def sample_texts(per_file: int, characters: int = 20_000) -> list[str]:
    """The first texts of every file of the sample, cut to a length."""
    texts = []
    for file in sorted(SAMPLE_DIR.glob("*.jsonl.zst")):
        for number, line in zip(range(1, per_file + 1), read_lines(str(file)), strict=False):
            texts.append(parse_line(line, str(file), number)[0][:characters])
    return texts


TEXTS = [
    *sample_texts(1, 3000),
    "",
    " leading, trailing and  doubled spaces \n\n\ttabs\r\nand ends ",
    "Grüße, Ελληνικά, русский, עברית, 漢字かな, 🙂👩‍🚀, e\u0301 and \u00e9, \u0000 and \ufeff",
]
