//! The kernels of the NAS Parallel Benchmarks: class S against the published verification values, which `finish` of
//! each compares with; and that sizes come near what is asked for.

use terrace_workload::{conduct, run_serially, Algorithm, Conduct, Heap, Spec};

#[test]
fn class_s_gives_the_published_values() {
    for name in ["npb-cg", "npb-mg", "npb-ft", "npb-bt"] {
        for threads in [1, 3] {
            let spec = Spec::parse(&format!("{name},class=S,threads={threads}")).expect("valid");
            if let Err(wrong) = run_serially(&spec, Heap::new) {
                panic!("{spec}: {wrong}");
            }
        }
    }
}

struct Words;

impl Conduct for Words {
    type Out = usize;
    fn conduct<A: Algorithm>(self, algorithm: A, _: &Spec) -> usize {
        algorithm.words()
    }
}

#[test]
fn sizes_come_near_what_is_asked_for() {
    // FT's grids are powers of two: at most a factor of the root of two off.
    for (name, off) in [("npb-cg", 0.03), ("npb-bt", 0.08), ("npb-mg", 0.2), ("npb-ft", 0.42), ("graph-pagerank", 0.3)]
    {
        for share in ["0.56", "0.89", "1.24", "2.32", "4.69"] {
            let spec = Spec::parse(&format!("{name},fast=8MiB,size={share}")).expect("valid");
            let asked = spec.size.bytes(spec.fast).0 as f64;
            let ratio = conduct(&spec, Words) as f64 * 8.0 / asked;
            assert!((1.0 / (1.0 + off)..1.0 + off).contains(&ratio), "{spec}: {ratio}");
        }
    }
}
