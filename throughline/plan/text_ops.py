"""The ops on text. No TensorFlow; `kernels/tokenizers.py` computes them."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from throughline.plan.ops import DataFacts, Op, Shape, register
from throughline.shared.files import digest_file
from throughline.shared.libraries import TOKENIZERS


@register
class Tokenize(Op):
    """Turn text into the numbers of its tokens, int32 from 1; 0 is padding."""

    name = "tokenize"
    version = 4
    works_on = ("text",)
    kind: Literal["sentencepiece", "wordpiece", "bytes"] = Field(
        default="sentencepiece",
        description=(
            "sentencepiece: pieces of a unigram model, in any script · wordpiece: words and their"
            " parts, split at spaces and punctuation · bytes: every byte of the UTF-8"
        ),
    )
    vocabulary: int = Field(default=8000, ge=16, le=1_000_000, description="tokens to fit, at most")
    model: str = Field(
        default="",
        description=(
            "file of an existing tokenizer: SentencePiece's .model, or WordPiece's vocabulary, a"
            " token per line; empty: one is fitted on the training split"
        ),
    )
    lower: Literal["auto", "always", "never"] = Field(
        default="auto",
        description=(
            "whether text is lower-cased first: always, never, or auto: if no token has a capital"
            " letter"
        ),
    )

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and arguments; a given file counts by its content."""
        content = digest_file(Path(self.model)) if self.model else ""
        return {**super().identity, "model": content}

    @property
    def file(self) -> str:
        """Name of the tokenizer's file in the snapshot; empty for bytes, which need none."""
        return {"sentencepiece": "tokenizer.model", "wordpiece": "tokenizer.txt"}.get(self.kind, "")

    @property
    def libraries(self) -> tuple[str, ...]:
        return () if self.kind == "bytes" else TOKENIZERS

    def bind(self, facts: DataFacts) -> Op:
        """Return the op with the snapshot's file, fitted or given, as `model`; bytes need none."""
        if not self.file:
            return self
        return self.model_copy(update={"model": str(facts.snapshot / self.file)})

    def shape(self, before: Shape) -> Shape:
        return (None,)


@register
class Truncate(Op):
    """Keep the first tokens of a text."""

    name = "truncate"
    works_on = ("text",)
    tokens: int = Field(gt=0, le=1 << 20, description="how many tokens are kept")


@register
class EndDocument(Op):
    """Append number 0 after the last token, to separate documents."""

    name = "end_document"
    works_on = ("text",)
