"""Worker processes: the same actors on every core, one of them killed and replaced.

Run it with `python examples/workers.py`.
"""

import os
import signal

from callboard import Actor, Node


class Counter(Actor):
    def primes_below(self, limit: int) -> int:
        return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, limit))


def main() -> None:
    with Node("office") as node:
        pool = node.workers(2)
        group = node.group("counters")
        for counter in pool.spawn_each(Counter):
            group.join(counter)
        answers = [group.call(Counter.primes_below, limit) for limit in (1000, 2000)]
        print([answer.result(10) for answer in answers])

        victim = pool[0]
        lost = node.spawn(Counter, on=victim)
        down = node.monitor(lost)
        os.kill(victim.pid, signal.SIGKILL)
        print(down.result(5).reason)
        print(pool.spawn(Counter).call(Counter.primes_below, 100).result(10))


if __name__ == "__main__":
    main()
