"""A dictionary of small objects with skewed look-ups: what interpreters do to memory."""

import random
import sys

seed, count, lookups = (int(word) for word in sys.argv[1:4])
random.seed(seed)


class Account:
    __slots__ = ("name", "balance", "history")

    def __init__(self, i):
        self.name = "account %09d" % i
        self.balance = i
        self.history = [i]


accounts = {i * 7919 % count: Account(i) for i in range(count)}
total = 0
for _ in range(lookups):
    account = accounts[int(count * random.random() ** 4)]
    account.balance += 1
    total += len(account.name) + account.history[0]
print("objects", total)
