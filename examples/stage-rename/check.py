from shop import amount

assert amount([1.0, 2.0]) == 3.0
print("checked")
