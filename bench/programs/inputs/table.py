"""A C source with one large table, as generators of parsers and fonts write them."""

import sys

seed, rows = int(sys.argv[1]), int(sys.argv[2])
print("typedef struct { int a, b; const char *s; } row;\nstatic const row rows[] = {")
x = seed
for i in range(rows):
    x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    print('{%d,%d,"k%d"},' % (x, i, x % 5000))
print("};\nint at(int i) { return rows[i].a + rows[i].b; }")
