//! Random numbers, and that wrong numbers are noticed. Class S of each kernel: `tests/npb.rs`.

use crate::algorithm::Algorithm;
use crate::drive::take_turns;
use crate::memory::{Heap, WordMemory};
use crate::spec::WorkloadSpec;
use crate::team::Team;

#[test]
fn random_numbers_are_the_benchmarks() {
    // 5^13 x 314159265 mod 2^46.
    let expected = (1_220_703_125u128 * 314_159_265 % (1 << 46)) as f64 / (1u64 << 46) as f64;
    assert_eq!(super::Random::new(1).draw(), expected);
    assert_ne!(super::Random::new(2).draw(), expected);
}

#[test]
fn what_is_not_near_enough_is_wrong() {
    assert!(super::compare("npb-cg", "zeta", 8.597_177_507_9, 8.597_177_507_864_8, 1e-10).is_ok());
    assert!(super::compare("npb-cg", "zeta", 8.597_177_51, 8.597_177_507_864_8, 1e-10).is_err());
    assert!(super::compare("npb-cg", "zeta", f64::NAN, 8.597_177_507_864_8, 1e-10).is_err());
    assert!(super::must_verify(&WorkloadSpec::parse("npb-cg,class=S").expect("valid")));
    for other in ["npb-cg", "npb-cg,class=S,seed=2", "npb-cg,class=S,seconds=1"] {
        assert!(!super::must_verify(&WorkloadSpec::parse(other).expect("valid")), "{other}");
    }
}

#[test]
fn damage_is_noticed() {
    let spec = WorkloadSpec::parse("npb-cg,class=S").expect("valid");
    let mut cg = Team::new(super::cg::Cg::new(&spec), &spec);
    let memory = Heap::new(cg.words());
    cg.prepare(&memory);
    // One bit of one element's value.
    let word = 120_000;
    memory.store(word, memory.load(word) ^ 1 << 40);
    let threads = take_turns(&cg, 2, &memory);
    let wrong = cg.finish(&memory, &threads).expect_err("damaged");
    assert!(wrong.to_string().contains("npb-cg"), "{wrong}");
}

#[test]
fn a_key_that_changes_on_its_way_is_noticed() {
    let spec = WorkloadSpec::parse("npb-is,class=S").expect("valid");
    let mut is = Team::new(super::is::Is::new(&spec), &spec);
    let memory = Heap::new(is.words());
    is.prepare(&memory);
    // The second lowest bit of a key that no ranking changes and that none of the five is.
    memory.store(1000, memory.load(1000) ^ 2);
    let threads = take_turns(&is, 2, &memory);
    let wrong = is.finish(&memory, &threads).expect_err("damaged");
    assert!(wrong.to_string().contains("npb-is"), "{wrong}");
}
