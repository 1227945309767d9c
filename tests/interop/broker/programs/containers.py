"""Containers taken out of data, changed, and put back; the names of the compiled module."""

import broker

vector = broker.Data([1, "x", (2.5,)]).as_vector()
vector.append(broker.Data({1, 2}))
vector.append(x=broker.Data(None))
print(vector, repr(vector), len(vector), isinstance(vector, broker.Vector))
print(all(isinstance(item, broker._broker.Data) for item in vector))
print(broker.Data(vector), issubclass(broker.Data, broker._broker.Data))

members = broker.Data({3, 1}).as_set()
members.add(broker.Data(2))
members.remove(broker.Data(3))
print(members, repr(members), broker.Data(1) in members)
print([item.as_integer() for item in members], isinstance(members, broker.Set))

table = broker.Data({"b": 1, "a": [2]}).as_table()
table[broker.Data("c")] = broker.Data(broker.Count(5))
print(table, repr(table), broker.Data("c") in table, isinstance(table, broker.Table))
for key, value in table.items():
    print(key.as_string(), value, isinstance(key, broker._broker.Data))
print(broker.Data(table))
print(broker.Data(x=5), broker.Data.from_py(x="text"), broker.Data.to_py(d=broker.Data([7])))
print(broker.Data.to_py(table[broker.Data("a")]))
