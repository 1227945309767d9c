"""Votes of members on whether one of them is gone.

A member that finds another out of reach asks the other voters whether it is out of their reach,
too. More than half of the voters have to say so. **Voters** are the members whose leases were
seen to rise within a TTL when the ballot began, the one that is voted on included: it is not
asked, and counts as one that says no. With fewer than three nobody is voted out, so that of two
nodes which lose sight of each other neither takes from the other.

A vote counts only for the ballot that asked for it, and a ballot ends when its subject is in
reach again, or after `BALLOT_SECONDS`. So no vote is older than its ballot.
"""

from collections.abc import Collection, Hashable, Mapping
from typing import Final, NamedTuple

from callboard.support.dataclass import dataclass

#: Seconds after which a ballot is over: what was seen in it is no longer so.
BALLOT_SECONDS: Final = 1.0

#: With fewer voters nobody is voted out.
LEAST_VOTERS: Final = 3


class BallotSubject(NamedTuple):
    """Who is voted on: a member, and when it became one."""

    writer: str
    joined: int


@dataclass(frozen=True, slots=True)
class AskVotes:
    """Ask voters whether a member is out of their reach."""

    ballot: int
    subject: BallotSubject
    voters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suspected:
    """More than half of the voters do not reach a member."""

    subject: BallotSubject


class _Ballot(NamedTuple):
    """One that is under way."""

    number: int
    ends_at: float
    voters: frozenset[str]
    #: Who does not reach the subject.
    ayes: frozenset[str]


BallotEffect = AskVotes | Suspected


class BallotMachine:
    """The ballots of one member; fields hold values that are replaced and never changed."""

    def __init__(self, writer: str) -> None:
        """Make one of a member without ballots."""
        self.writer = writer
        self.count = 0
        self.ballots: Mapping[BallotSubject, _Ballot] = {}

    def key(self) -> Hashable:
        """Return what is equal for machines in the same state."""
        return self.count, tuple(sorted(self.ballots.items()))

    def lost(
        self, subject: BallotSubject, voters: Collection[str], now: float
    ) -> list[BallotEffect]:
        """Begin a ballot on a member that is out of reach.

        Args:
            subject: the member.
            voters: the members whose leases rose within a TTL, this one and the subject too.
            now: seconds.
        """
        if len(voters) < LEAST_VOTERS or self.writer not in voters:
            return []
        self.count += 1
        own = frozenset({self.writer})
        ballot = _Ballot(self.count, now + BALLOT_SECONDS, frozenset(voters), own)
        self.ballots = {**self.ballots, subject: ballot}
        asked = sorted(ballot.voters - {self.writer, subject.writer})
        return [AskVotes(ballot.number, subject, tuple(asked))]

    def found(self, writer: str) -> None:
        """End the ballots on a member that is in reach."""
        ballots = self.ballots.items()
        self.ballots = {each: ballot for each, ballot in ballots if each.writer != writer}

    def voted(
        self, number: int, voter: str, now: float, *, is_out_of_reach: bool
    ) -> list[BallotEffect]:
        """Take a vote; one of another ballot, or a late one, does not count."""
        ballots = self.ballots.items()
        asked = next((each for each in ballots if each[1].number == number), None)
        if asked is None:
            return []
        subject, ballot = asked
        is_counted = voter in ballot.voters and voter != subject.writer and is_out_of_reach
        if now >= ballot.ends_at:
            self.found(subject.writer)
        elif is_counted:
            ayes = ballot.ayes | {voter}
            self.ballots = {**self.ballots, subject: ballot._replace(ayes=ayes)}
            if 2 * len(ayes) > len(ballot.voters):
                self.found(subject.writer)
                return [Suspected(subject)]
        return []
