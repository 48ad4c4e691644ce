"""Text to token ids and back: bytes, any Hugging Face `tokenizer.json`, any SentencePiece `.model`, and the shipped 8k BPE.

One rule for all of them: an encoded text holds no special token. The separator stands in front of a document because whoever
stores it put it there, never because the document spelled it.
"""

import abc
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SHIPPED = {"bpe_8k": Path(__file__).parent / "sample" / "bpe_8k.json"}

# What public tokenizer.json files call the token that opens a document, in the order tried when the file's own
# post-processor puts nothing in front. GPT-2, GPT-NeoX and Qwen separate documents by their end token.
_OPENING_NAMES = ("<|bos|>", "<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>", "</s>", "<eos>", "[EOS]")


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrower of uint16 and uint32 that holds the ids `0 .. vocab_size - 1`."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def pack_ids(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """Casts token ids to the dtype they are stored in, refusing those that would not survive it.

    Args:
      ids: integers of any shape.
      vocab_size: number of ids, separator included.

    Returns:
      The same ids as `token_dtype(vocab_size)`.

    Raises:
      ValueError: an id lies outside `0 .. vocab_size - 1`.
    """
    if ids.size and (int(ids.max()) >= vocab_size or int(ids.min()) < 0):
        worst = int(ids.max()) if int(ids.max()) >= vocab_size else int(ids.min())
        raise ValueError(
            f"token id {worst} does not fit a store of {vocab_size=} ({token_dtype(vocab_size)}): "
            "prepare the text again with the tokenizer this store is for"
        )
    return ids.astype(token_dtype(vocab_size), copy=False)


class AbstractTokenizer(abc.ABC):
    """Encodes text to ids and back.

    Attributes:
      name: what `load_tokenizer` takes to build it again: "bytes", a shipped name, or an absolute path.
      vocab_size: number of ids, the separator included.
      separator: the id put in front of every document (the tokenizer's beginning-of-sequence token).
      fingerprint: sha256 of the definition, in hex; equal fingerprints encode alike.
    """

    name: str
    vocab_size: int
    separator: int
    fingerprint: str

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """int32 ids of shape (tokens,), with no special token added and none made from strings that spell one."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of these ids; special tokens, the separator among them, give nothing."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, in order."""
        return [self.encode(text) for text in texts]


class BytesTokenizer(AbstractTokenizer):
    """UTF-8 bytes are ids 0 .. 255; the separator is 256."""

    name = "bytes"
    vocab_size = 257
    separator = 256
    fingerprint = hashlib.sha256(b"utf-8 bytes 0..255, separator 256").hexdigest()

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        kept = np.asarray(ids)
        return kept[kept < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class HuggingFaceTokenizer(AbstractTokenizer):
    """A `tokenizer.json` of the `tokenizers` library, read without its special-token matching, truncation and padding.

    Args:
      path: the file.
      name: what to call it.

    Raises:
      ValueError: the file is not a `tokenizer.json`, or has no special token that opens a document.
    """

    def __init__(self, path: Path, name: str):
        import tokenizers

        definition = path.read_bytes()
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(definition)
        except ValueError as error:
            raise ValueError(f"tokenizer={str(path)!r} is not a tokenizer.json of Hugging Face's tokenizers library ({error})") from None
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.name = name
        self.fingerprint = hashlib.sha256(definition).hexdigest()
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        special = {number: added.content for number, added in self._tokenizer.get_added_tokens_decoder().items() if added.special}
        self.separator = self._opening_token(special, path)
        # BPE builds tokens from its merges, which never spell a special token; a Unigram or WordLevel vocabulary may list one.
        # There the text is cut behind the first character of each such string, and the pieces encoded on their own.
        listed = special.values() if json.loads(definition)["model"].get("type") != "BPE" else ()
        cuts = [f"(?<={re.escape(content[0])})(?={re.escape(content[1:])})" for content in listed]
        self._cuts = re.compile("|".join(cuts)) if cuts else None

    def _opening_token(self, special: dict[int, str], path: Path) -> int:
        templated = self._tokenizer.encode("a").ids
        if templated and templated[0] in special:
            return templated[0]
        by_name = {content: number for number, content in special.items()}
        for name in _OPENING_NAMES:
            if name in by_name:
                return by_name[name]
        raise ValueError(f"tokenizer={str(path)!r} has no special token to open a document: add one named e.g. {_OPENING_NAMES[0]!r} to it")

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self._cuts is None:
            encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(one.ids, np.int32) for one in encoded]
        split = [self._cuts.split(text) for text in texts]
        encoded = iter(self._tokenizer.encode_batch_fast([piece for pieces in split for piece in pieces], add_special_tokens=False))
        return [np.array([i for _ in pieces for i in next(encoded).ids], np.int32) for pieces in split]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True)


class SentencePieceTokenizer(AbstractTokenizer):
    """A SentencePiece `.model`; the separator is its beginning-of-sequence piece, or the end piece where it has none.

    Args:
      path: the file.

    Raises:
      ValueError: the package is missing, the file is not a model, or it has neither piece.
    """

    def __init__(self, path: Path):
        try:
            import sentencepiece
        except ModuleNotFoundError:
            raise ValueError(f'tokenizer={str(path)!r} needs sentencepiece: pip install "rope-lab[prepare]"') from None
        definition = path.read_bytes()
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(definition)
        except RuntimeError:
            raise ValueError(f"tokenizer={str(path)!r} is not a SentencePiece model") from None
        self.name = str(path)
        self.fingerprint = hashlib.sha256(definition).hexdigest()
        self.vocab_size = self._processor.vocab_size()
        self.separator = self._processor.bos_id() if self._processor.bos_id() >= 0 else self._processor.eos_id()
        if self.separator < 0:
            raise ValueError(f"tokenizer={str(path)!r} has neither <s> nor </s> to open a document: train it with a bos_id")

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._processor.encode(text, out_type=int), np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self._processor.decode(np.asarray(ids).tolist())


def load_tokenizer(spec: str) -> AbstractTokenizer:
    """Builds a tokenizer by name or file.

    Args:
      spec: "bytes"; "bpe_8k", trained on the shipped sample; or the path of a `tokenizer.json` or a SentencePiece `.model`.

    Raises:
      ValueError: it is none of these, or the file cannot be used.
    """
    if spec == "bytes":
        return BytesTokenizer()
    if spec in SHIPPED:
        return HuggingFaceTokenizer(SHIPPED[spec], spec)
    path = Path(spec).expanduser().resolve()
    if path.suffix in (".json", ".model") and path.is_file():
        return SentencePieceTokenizer(path) if path.suffix == ".model" else HuggingFaceTokenizer(path, str(path))
    raise ValueError(
        f"tokenizer={spec!r} is not 'bytes', {', '.join(map(repr, SHIPPED))} or an existing tokenizer.json or SentencePiece .model file"
    )
