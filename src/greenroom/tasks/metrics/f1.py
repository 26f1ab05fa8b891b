"""The harmonic mean of precision and recall, averaged over labels."""

import datasets
import evaluate
from sklearn.metrics import f1_score


class F1(evaluate.Metric):
    """F1 over label indices, by scikit-learn; an undefined one (0 / 0) counts as 0.

    The average is over the labels that occur among the references or the predictions.
    """

    def _info(self):
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description="predictions, references: label indices [N]; average: a name",
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions, references, average="macro"):
        score = f1_score(references, predictions, average=average, zero_division=0)
        return {"f1": float(score)}
