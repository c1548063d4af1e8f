"""What an evaluator returns when it has more to say than metrics."""

from dataclasses import dataclass, field


@dataclass
class EvaluationResult:
    metrics: dict[str, float]
    artifacts: dict[str, str | bytes] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, metrics):
        return cls(metrics=metrics)

    def to_dict(self):
        return self.metrics

    def has_artifacts(self):
        return bool(self.artifacts)

    def get_artifact_keys(self):
        return list(self.artifacts)

    def get_artifact_size(self, key):
        value = self.artifacts.get(key, "")
        return len(value if isinstance(value, bytes) else str(value).encode())

    def get_total_artifact_size(self):
        return sum(map(self.get_artifact_size, self.artifacts))
