//! The kernels of `docs/results/xbgas.md` compute the same in all three ways.

mod common;

use common::{compile_file, run_with, RunOptions};
use std::path::Path;
use terrace_xbgas::element::ElementsEnd;

#[test]
fn kernels_compute_the_same_in_all_ways() {
    let study = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/xbgas/study.c");
    let Some(file) = compile_file(&study, 2018) else { return };
    for kernel in ["gather", "broadcast", "gups", "is", "chase", "stream", "halo", "bfs"] {
        for elements in [1, 4] {
            let digests = ["raw", "calls", "messages"].map(|way| {
                let words = [kernel, way, "1024"];
                let run = run_with(&file, &words, elements, &RunOptions::of(elements));
                assert_eq!(run.end, ElementsEnd::Exit(0), "{kernel} {way} {elements}");
                run.printed[0].split_whitespace().nth(1).expect("a digest").to_owned()
            });
            assert_ne!(digests[0], "0000000000000000", "{kernel}");
            assert!(digests.iter().all(|d| *d == digests[0]), "{kernel} {elements} {digests:?}");
        }
    }
}
