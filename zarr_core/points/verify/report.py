"""The result of a verification."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """One problem of a store.

    Attributes:
        sample_id: the sample; "" for a problem of the whole store.
        field: canonical field name; "" for a problem of the whole sample.
        message: description, with the chunk and the object if it is about one.
        commit: description of the commit that added the group; "" unless ``deep`` was requested.
        damage: whether the store is wrong; otherwise something prevented the check.
    """

    sample_id: str
    field: str
    message: str
    commit: str = ""
    damage: bool = True

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.sample_id, self.field) if part)
        message = f"{where}: {self.message}" if where else self.message
        return f"{message}; {self.commit}" if self.commit else message


@dataclass
class FieldTally:
    """Amounts of one field that were checked."""

    samples: int = 0
    points: int = 0
    chunks: int = 0
    bytes: int = 0

    def add(self, other: FieldTally) -> None:
        """Add another tally."""
        self.samples += other.samples
        self.points += other.points
        self.chunks += other.chunks
        self.bytes += other.bytes


@dataclass
class VerificationReport:
    """Result of :func:`zarr_core.points.verify.store.verify_store`.

    Attributes:
        samples: samples checked.
        generations: generations whose samples were checked: the current one, or all kept ones with ``deep``.
        unnamed: groups that no generation names, which is not a problem; counted with ``deep`` only.
        against_source: whether arrays were compared with their source.
        any_order: samples whose rows were compared in any order, because another program wrote them.
        parameters: samples whose parameters were compared with their source.
        parameters_left_out: samples whose parameters were not, because the kind of the source is not known or does not
            find the sample.
        points: which points of its samples a thin copy has; "" for all.
        fields: amounts read, by canonical field name.
        problems: all problems; empty if the store is intact.
    """

    samples: int = 0
    generations: int = 0
    unnamed: int = 0
    against_source: bool = False
    any_order: int = 0
    parameters: int = 0
    parameters_left_out: int = 0
    points: str = ""
    fields: dict[str, FieldTally] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    @property
    def how(self) -> str:
        """How rows and parameters were compared with their source."""
        how = "row by row"
        if self.points:
            how += f"; of each sample the points that were copied ({self.points}, in whole chunks)"
        if self.any_order:
            how += f"; {self.any_order:,} samples of another program in any order"
        if self.parameters:
            how += f"; parameters of {self.parameters:,} samples"
        if self.parameters_left_out:
            how += f"; not the parameters of {self.parameters_left_out:,} samples (give --dataset-kind of the source)"
        return how

    @property
    def damaged(self) -> list[str]:
        """Samples whose stored data is wrong, and which another conversion repairs."""
        return sorted({problem.sample_id for problem in self.problems if problem.sample_id and problem.damage})

    @property
    def arrays(self) -> int:
        """Arrays read."""
        return sum(tally.samples for tally in self.fields.values())

    @property
    def chunks(self) -> int:
        """Chunks read."""
        return sum(tally.chunks for tally in self.fields.values())

    @property
    def bytes(self) -> int:
        """Bytes of the objects read."""
        return sum(tally.bytes for tally in self.fields.values())


@dataclass
class SampleFindings:
    """Problems and amounts of one sample, and how it was compared with its source.

    Attributes:
        any_order: whether its rows were compared in any order.
        parameters: whether its parameters were compared; None if it has none.
    """

    sample_id: str
    any_order: bool = False
    parameters: bool | None = None
    problems: list[Problem] = field(default_factory=list)
    fields: dict[str, FieldTally] = field(default_factory=dict)

    def add(self, name: str, message: str, *, damage: bool = True) -> None:
        """Add a problem of a field, or of the whole sample if ``name`` is ""."""
        self.problems.append(Problem(self.sample_id, name, message, damage=damage))
