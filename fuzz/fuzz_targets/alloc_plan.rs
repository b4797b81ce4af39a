//! Arbitrary bytes as a plan of allocations.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_alloc::arena::plan::{ArenaPlan, ARENAS_LIMIT, RULES_LIMIT};
use terrace_types::NodeId;

fuzz_target!(|data: &[u8]| {
    match ArenaPlan::parse(data) {
        Ok(plan) => {
            assert!(plan.arenas.len() <= ARENAS_LIMIT && plan.rules.len() <= RULES_LIMIT);
            assert!(plan.rules.iter().all(|r| r.arena < plan.arenas.len()));
            assert!(plan
                .segments
                .iter()
                .all(|s| s.arena < plan.arenas.len() && !s.name.contains('/')));
            assert!(plan.default.is_none_or(|d| d < plan.arenas.len()));
            let _here_or_not = plan.check(&[NodeId(0), NodeId(1)]);
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
