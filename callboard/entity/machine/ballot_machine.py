"""Votes of members on whether another member is lost.

A member that cannot reach another member, the subject, asks the other voters whether they can
reach it. The subject is removed if more than half of the voters cannot. **Voters** are the
members whose leases were renewed within a TTL before the ballot began. The subject is a voter,
too: it is not asked, and counts as a vote against the removal. With fewer than three voters no
member is removed. So if two nodes lose their link, neither takes over the slots of the other.

A vote counts only for the ballot in which it was requested. A ballot ends when its subject is
reachable again, or after `BALLOT_SECONDS`. So no vote is older than its ballot.
"""

from collections.abc import Collection, Hashable, Mapping
from typing import Final, NamedTuple

from callboard.support.dataclass import dataclass

#: Seconds after which a ballot ends, as the observations of its voters are outdated.
BALLOT_SECONDS: Final = 1.0

#: With fewer voters no member is removed.
LEAST_VOTERS: Final = 3


class BallotSubject(NamedTuple):
    """The subject of a vote: a member, and the table version in which it joined."""

    writer: str
    joined: int


@dataclass(frozen=True, slots=True)
class AskVotes:
    """Ask voters whether they cannot reach a member."""

    ballot: int
    subject: BallotSubject
    voters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suspected:
    """More than half of the voters cannot reach a member."""

    subject: BallotSubject


class _Ballot(NamedTuple):
    """A ballot in progress."""

    number: int
    ends_at: float
    voters: frozenset[str]
    #: Voters that cannot reach the subject.
    ayes: frozenset[str]


BallotEffect = AskVotes | Suspected


class BallotMachine:
    """The ballots started by one member; fields hold values that are replaced, not changed."""

    def __init__(self, writer: str) -> None:
        """Create a machine without ballots."""
        self.writer = writer
        self.count = 0
        self.ballots: Mapping[BallotSubject, _Ballot] = {}

    def key(self) -> Hashable:
        """Return a value that is equal for machines in the same state."""
        return self.count, tuple(sorted(self.ballots.items()))

    def lost(
        self, subject: BallotSubject, voters: Collection[str], now: float
    ) -> list[BallotEffect]:
        """Start a ballot on an unreachable member.

        Args:
            subject: the member.
            voters: the members whose leases were renewed within a TTL, including this one and
                the subject.
            now: seconds.
        """
        if len(voters) < LEAST_VOTERS or self.writer not in voters:
            return []
        self.count += 1
        own = frozenset({self.writer})
        ballot = _Ballot(self.count, now + BALLOT_SECONDS, frozenset(voters), own)
        self.ballots = {**self.ballots, subject: ballot}
        voters_to_ask = sorted(ballot.voters - {self.writer, subject.writer})
        return [AskVotes(ballot.number, subject, tuple(voters_to_ask))]

    def reached(self, writer: str) -> None:
        """End the ballots on a member that is reachable again."""
        ballots = self.ballots.items()
        self.ballots = {about: ballot for about, ballot in ballots if about.writer != writer}

    def voted(
        self, number: int, voter: str, now: float, *, is_out_of_reach: bool
    ) -> list[BallotEffect]:
        """Count a vote, unless it is late or belongs to another ballot."""
        ballots = self.ballots.items()
        match = next((item for item in ballots if item[1].number == number), None)
        if match is None:
            return []
        subject, ballot = match
        is_counted = voter in ballot.voters and voter != subject.writer and is_out_of_reach
        if now >= ballot.ends_at:
            self.reached(subject.writer)
        elif is_counted:
            ayes = ballot.ayes | {voter}
            self.ballots = {**self.ballots, subject: ballot._replace(ayes=ayes)}
            if 2 * len(ayes) > len(ballot.voters):
                self.reached(subject.writer)
                return [Suspected(subject)]
        return []
