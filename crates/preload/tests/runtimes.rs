//! More programs from outside, with the library and without: run times, and tools that use threads.
#![allow(clippy::unwrap_used)]

mod under;

use under::{folder, run, same};

/// Python's own tests of its allocators: the guards over malloc, the hooks, the tracing of blocks.
/// 3.12 moved them.
#[test]
fn python_tests_its_allocators() {
    if !run(&folder("has-testcapi"), "python3 -c 'import _testcapi, test.test_capi'", &[])
        .status
        .success()
    {
        return println!("skipped: python3 with its own tests is not installed");
    }
    let script = r#"python3 -c '
import _testcapi as t
for name in sorted(dir(t)):
    if name.startswith("test_py") and "alloc" in name:
        getattr(t, name)()
        print(name)'
        if python3 -c 'import test.test_capi.test_mem' 2>/dev/null; then m=test.test_capi.test_mem; else m=test.test_capi.test_misc; fi
        { python3 -m unittest -v -k PyMem $m
        PYTHONMALLOC=malloc python3 -m unittest -v test.test_tracemalloc.TestSnapshot test.test_tracemalloc.TestTraceback; } 2>&1 |
        grep -E '^test|^OK|^FAILED|^ERROR'"#;
    same("python-allocators", &["python3"], script);
}

#[test]
fn gxx_links_at_once() {
    let script = r#"cat >p.cpp <<'END'
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>
int main() {
    std::map<std::string, std::vector<int>> m;
    for (int i = 0; i < 5000; i++) m["k" + std::to_string(i % 97)].push_back(i);
    std::vector<std::shared_ptr<std::string>> s;
    for (auto &[k, v] : m) s.push_back(std::make_shared<std::string>(k + std::to_string(std::accumulate(v.begin(), v.end(), 0))));
    std::sort(s.begin(), s.end(), [](auto &a, auto &b) { return *a > *b; });
    std::vector<std::thread> t;
    std::vector<long> sums(4);
    for (int n = 0; n < 4; n++)
        t.emplace_back([&, n] { for (int i = 0; i < 20000; i++) sums[n] += std::string(i % 300, 'x').size(); });
    for (auto &x : t) x.join();
    std::cout << *s[3] << sums[2] << std::endl;
}
END
        g++ -std=c++17 -O2 -flto p.cpp -o p -pthread && ./p"#;
    same("gxx", &["g++"], script);
}

#[test]
fn perl() {
    let script = r#"perl -e 'my %h;
        for my $i (1..60000) { $h{"k$i"} = [map { $_ * $i } 1..3]; delete $h{"k".int($i/2)} if $i % 3 }
        my $s = 0; $s += $_->[2] for values %h; my $t = join ",", sort { $a cmp $b } keys %h; print "$s ", length $t, "\n";
        $t =~ s/k(\d)/$1$1/g; print substr($t, 1000, 60), "\n"; $| = 1; print "";
        my $p = fork; if (!$p) { my @a = (1) x 100000; print scalar @a, "\n"; exit 3 } waitpid $p, 0; print $? >> 8, "\n"'"#;
    same("perl", &["perl"], script);
}

/// It has a garbage collector of its own, and uses malloc beside it.
#[test]
fn node() {
    let script = r#"node -e 'const z = require("zlib"), c = require("crypto");
        const b = Buffer.from(Array.from({length: 300000}, (_, i) => i * i % 251)), p = z.deflateSync(b);
        console.log(p.length, z.inflateSync(p).equals(b), c.createHash("sha256").update(p).digest("hex"));
        const o = {}; for (let i = 0; i < 50000; i++) o["k" + i] = "v".repeat(i % 50); console.log(JSON.stringify(o).length)'"#;
    same("node", &["node"], script);
}

/// As above, with dozens of threads.
#[test]
fn java() {
    let script = r#"cat >P.java <<'END'
import java.util.*;
import java.util.stream.*;
public class P {
    public static void main(String[] a) throws Exception {
        Map<String, Integer> m = new TreeMap<>();
        for (int i = 0; i < 50000; i++) m.merge("k" + i % 700, i, Integer::sum);
        long sum = IntStream.range(0, 100000).parallel().mapToLong(i -> i).sum();
        System.out.println(m.size() + " " + m.get("k5") + " " + sum);
        java.util.zip.Deflater d = new java.util.zip.Deflater();
        d.setInput(new byte[1000000]);
        d.finish();
        System.out.println(d.deflate(new byte[1000000]));
    }
}
END
        java -Xmx128m P.java"#;
    same("java", &["java", "javac"], script);
}

#[test]
fn tools_that_use_threads() {
    let script =
        "seq 50000 | sort -R --random-source=/bin/sh --parallel=2 >a && sort -n --parallel=2 -S 1M a | sha256sum &&
        xz -T2 -k a && xz -dc a.xz | cmp - a && tar c a --mtime=@0 --owner=0 --group=0 | sha256sum &&
        awk '{ s[$1 % 1000] += $1 } END { print length(s), s[7] }' a";
    same("tools", &["sort", "xz", "tar", "awk"], script);
}
