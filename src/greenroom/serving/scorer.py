"""A folder of TorchScript, tokenizer and labels -> labels and scores for texts.

The same file runs in two places: here, under the server and the evaluation, and as a copy inside
every MLflow model (its pyfunc loader), where greenroom is not installed. So it imports the standard
library, numpy, torch and tokenizers alone: never greenroom, mlflow or transformers.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer

# A text is cut at so many characters a token before it is tokenized, and its answer says so: 5 MB
# would hold the scoring thread for 10 s. WordPiece reads no word of more as anything but [UNK], and
# in written language a token is 3 to 6; what is lost lies behind long runs of blanks.
TOKEN_CHARACTERS = 100
FORMAT = 1  # of greenroom.json: a folder of a later format is refused, not misread


class BadInstance(ValueError):
    """An instance that cannot be scored; `index` is its place in the request."""

    def __init__(self, index: int, why: str) -> None:
        self.index, self.why = index, why
        super().__init__(f"instance {index}: {why}")

    def __reduce__(self) -> tuple[type[BadInstance], tuple[int, str]]:
        return type(self), (self.index, self.why)


class Scorer:
    """One loaded model version. Safe to call from several threads."""

    def __init__(
        self, module: torch.jit.ScriptModule, tokenizer: Tokenizer, about: Mapping[str, Any]
    ):
        self._module = module
        self._tokenizer = tokenizer
        self.about = dict(about)
        self.labels: tuple[str, ...] = tuple(about["labels"])
        self.input_keys: tuple[str, ...] = tuple(about["input_keys"])
        self.max_length: int = about["max_length"]
        self._most = self.max_length * TOKEN_CHARACTERS
        self._pad_id: int = about["pad_id"]
        self._field: str = about.get("text", "text")

    @classmethod
    def load(cls, folder: Path | str, threads: int = 0) -> Scorer:
        """The scorer of a model folder; `threads` CPU threads for the process, 0: torch's choice.

        Raises ValueError, naming the folder, for one that is incomplete or of a later format.
        """
        if threads:
            torch.set_num_threads(threads)
        folder = Path(folder)
        about = read_about(folder)
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            with warnings.catch_warnings():
                # TorchScript is what a version holds; python 3.14, where it ends, is left out.
                warnings.filterwarnings("ignore", r"`torch.jit.load` is dep", DeprecationWarning)
                module = torch.jit.load(str(folder / "module.pt"), map_location="cpu")
        except (
            Exception
        ) as error:  # tokenizers raises bare Exception; torch ValueError, RuntimeError
            raise ValueError(f"{folder}: the model cannot be loaded: {error}") from error
        tokenizer.no_padding()
        tokenizer.enable_truncation(about["max_length"])
        return cls(module.eval(), tokenizer, about)

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """The tokens of each text, cut at `max_length`."""
        return self._tokenizer.encode_batch_fast([text[: self._most] for text in texts])

    def logits(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """The logits [N, C] of `texts`, in their order (inside, batches of similar length)."""
        return self.forward(self.encode(texts), batch_size)

    def forward(self, encodings: Sequence[Encoding], batch_size: int = 32) -> np.ndarray:
        """The logits [N, C] of encoded texts; padding is masked, so company changes nothing."""
        out = np.zeros((len(encodings), len(self.labels)), dtype=np.float32)
        for rows in _by_length([len(e) for e in encodings], batch_size):
            tensors = self._tensors([encodings[i].ids for i in rows])
            with torch.inference_mode():
                out[rows] = self._module(*tensors).float().numpy()
        return out

    def score(self, instances: Sequence[Any], batch_size: int = 32) -> list[dict[str, Any]]:
        """`{"label", "score", "scores"}` of each text or `{"text": ...}`, in the order given.

        An over-long text is cut as in training, and its answer says `"truncated": true`. Raises
        `BadInstance` for the first instance that is neither.
        """
        texts = self.texts(instances)
        encodings = self.encode(texts)
        answers = self.answers(self.forward(encodings, batch_size))
        for answer, encoding, text in zip(answers, encodings, texts, strict=True):
            if encoding.overflowing or len(text) > self._most:
                answer["truncated"] = True
        return answers

    def texts(self, instances: Sequence[Any]) -> list[str]:
        """The text of each instance, checked."""
        return [self._text(i, instance) for i, instance in enumerate(instances)]

    def answers(self, logits: np.ndarray) -> list[dict[str, Any]]:
        """Logits [N, C] as one `{"label", "score", "scores"}` a row: softmax, the largest first."""
        shifted = np.exp(
            logits.astype(np.float64) - logits.max(axis=1, keepdims=True, initial=-1e30)
        )
        scores = shifted / shifted.sum(axis=1, keepdims=True)
        answers = []
        for row, best in zip(scores.tolist(), scores.argmax(axis=1).tolist(), strict=True):
            by_label = dict(zip(self.labels, row, strict=True))
            answers.append({"label": self.labels[best], "score": row[best], "scores": by_label})
        return answers

    def _text(self, index: int, instance: Any) -> str:
        if isinstance(instance, Mapping):
            if self._field not in instance:
                raise BadInstance(index, f"has no field {self._field!r}")
            instance = instance[self._field]
        if not isinstance(instance, str):
            kind = "null" if instance is None else type(instance).__name__
            raise BadInstance(index, f"must be a text or {{{self._field!r}: text}}, not {kind}")
        # JSON can carry half of a surrogate pair, which no UTF-8 tokenizer takes.
        return instance.encode("utf-8", "replace").decode("utf-8")

    def _tensors(self, ids: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The inputs [B, T] of forward(), padded to the longest of the batch."""
        shape = len(ids), max(1, *map(len, ids))
        tokens = np.full(shape, self._pad_id, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        for row, values in enumerate(ids):
            tokens[row, : len(values)] = values
            mask[row, : len(values)] = 1
        arrays = {"input_ids": tokens, "attention_mask": mask}
        zeros = np.zeros(shape, dtype=np.int64)  # token_type_ids and the like: one segment
        return [torch.from_numpy(arrays.get(key, zeros)) for key in self.input_keys]


def read_about(folder: Path) -> dict[str, Any]:
    """greenroom.json of a model folder. Raises ValueError for none, or one of a later format."""
    try:
        about = json.loads((folder / "greenroom.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: not a model folder of greenroom: {error}") from error
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{folder}: the model has format {about.get('format')!r}; this greenroom reads {FORMAT}"
        )
    return about


def _by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices in batches of similar length, the longest first: memory peaks at the start."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


# -- MLflow's pyfunc ---------------------------------------------------------------------------


class _PyFunc:
    """What mlflow.pyfunc calls: texts in any of its input types, a DataFrame out."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """A DataFrame with the columns label, score and scores (a JSON object of every label's).

        `model_input`: a DataFrame or a dict with the text's column, or a list or array of texts.
        """
        import pandas  # type: ignore[import-untyped]

        answers = self.scorer.score(_instances(model_input, self.scorer.about.get("text", "text")))
        return pandas.DataFrame(
            {
                "label": [a["label"] for a in answers],
                "score": [a["score"] for a in answers],
                # A column of dicts would need a map type, which not every signature can hold.
                "scores": [json.dumps(a["scores"], ensure_ascii=False) for a in answers],
            }
        )


def _instances(model_input: Any, field: str) -> list[Any]:
    if hasattr(model_input, "columns"):  # a DataFrame, told without importing pandas
        columns = list(model_input.columns)
        if field not in columns and len(columns) != 1:
            raise ValueError(f"the input has no column {field!r}; columns: {columns}")
        return model_input[field if field in columns else columns[0]].tolist()
    if isinstance(model_input, Mapping):
        if field not in model_input:
            raise ValueError(f"the input has no key {field!r}; keys: {sorted(model_input)}")
        model_input = model_input[field]
    if isinstance(model_input, str):
        return [model_input]
    return np.asarray(model_input, dtype=object).ravel().tolist()


def _load_pyfunc(path: str) -> _PyFunc:
    """The entry that MLflow's pyfunc flavour calls, with the model folder's path."""
    return _PyFunc(Scorer.load(path))
