"""Trains the shipped 8k tokenizer anew: `python -m rope_lab.data.train_bpe [FILE]`, by default over the shipped one.

Byte-level BPE (GPT-2's pre-tokenization, no prefix space) on the training files of the sample, never on the held-out one. The
same files and `tokenizers` version give the same file.
"""

import sys
from pathlib import Path

from rope_lab.data.lines import parse_line, read_lines
from rope_lab.data.prepare import SAMPLE_DIR
from rope_lab.data.tokenizer import SHIPPED

VOCAB_SIZE = 8192


def train(path: Path) -> None:
    """Writes the `tokenizer.json` to `path`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|bos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    files = sorted(SAMPLE_DIR.glob("train_*.jsonl.zst"))
    texts = (parse_line(line, str(file), number)[0] for file in files for number, line in enumerate(read_lines(str(file)), start=1))
    tokenizer.train_from_iterator(texts, trainer)
    path.write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    train(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED["bpe_8k"])
