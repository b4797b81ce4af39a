//! On the machine that the tests run on, whatever it has.
#![allow(clippy::unwrap_used)]

use terrace_alloc::attributes::{
    Attributes, Binding, ClassId, ClassPlacement, Index, Mismatch, NodeSplit,
};
use terrace_alloc::commit::Scope;
use terrace_alloc::memory::Memory;
use terrace_sys::{maps, Root};
use terrace_types::{Bytes, Pid, Seed};

fn memory() -> Option<Memory> {
    match Memory::live(&|_| None) {
        Ok(memory) => Some(memory),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Writes to every page of an allocation and reads it back.
fn use_all(address: usize, len: usize) {
    // SAFETY: the range was allocated by the caller just now, is writable, and nobody else knows of
    // it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) };
    for at in (0..len).step_by(4096) {
        assert_eq!(bytes[at], 0, "memory must come zeroed");
        bytes[at] = (at / 4096) as u8 | 1;
    }
    assert!((0..len).step_by(4096).all(|at| bytes[at] == (at / 4096) as u8 | 1));
}

#[test]
fn memory_is_aligned_zeroed_and_where_it_is_said_to_be() {
    let Some(memory) = memory() else { return };
    for size in [1, 4096, 5000, 1 << 20, 2 << 20, 9 << 20] {
        let at = memory.allocate(Bytes(size), Attributes::default()).unwrap();
        assert_eq!(at % if size >= 2 << 20 { 2 << 20 } else { 4096 }, 0, "{size}");
        use_all(at, size as usize);
        let row = memory.describe(at).unwrap();
        assert_eq!(row.got.iter().map(|g| g.1.get()).sum::<u64>(), row.size.get(), "{row:?}");
        memory.free(at).unwrap();
        let again = memory.allocate(Bytes(size), Attributes::default()).unwrap();
        use_all(again, size as usize);
    }
}

#[test]
fn strict_memory_is_there_and_too_much_is_refused() {
    let Some(memory) = memory() else { return };
    let strict = |name: &str| Attributes {
        mismatch: Mismatch::Error,
        name: name.into(),
        ..Attributes::in_class(ClassId(-1))
    };
    let at = memory.allocate(Bytes::mib(16), strict("fits")).unwrap();
    let row = memory.describe(at).unwrap();
    assert_eq!(row.got.iter().map(|g| g.1).sum::<Bytes>(), Bytes::mib(16), "{row:?}");
    let refused = memory.allocate(Bytes::gib(40_000), strict("too much")).unwrap_err();
    assert!(refused.to_string().contains(" free ("), "{refused}");
    memory.free(at).unwrap();
}

#[test]
fn commits_keep_content() {
    let Some(memory) = memory() else { return };
    let wish = Attributes {
        binding: Binding::OnCommit,
        split: NodeSplit::SpillOver,
        ..Attributes::default()
    };
    let touched = memory.allocate(Bytes::mib(4), wish.clone()).unwrap();
    use_all(touched, 4 << 20);
    let fresh = memory.allocate(Bytes::mib(3), wish).unwrap();
    let report = memory.commit(Scope::Epoch).unwrap();
    assert_eq!(report.rows.len(), 2);
    assert!(
        report
            .rows
            .iter()
            .all(|r| !r.refused && r.got.iter().map(|g| g.1).sum::<Bytes>() == r.size),
        "{report:?}"
    );
    use_all(fresh, 3 << 20);
    // SAFETY: allocated above and written by `use_all`; a commit keeps what is there.
    let kept = unsafe { std::slice::from_raw_parts(touched as *const u8, 4 << 20) };
    assert!((0..4 << 20).step_by(4096).all(|at| kept[at] == (at / 4096) as u8 | 1));
}

#[test]
fn many_objects_cost_few_mappings() {
    let Some(memory) = memory() else { return };
    let own = || maps::maps(&Root::live(), Pid(std::process::id() as i32)).map_or(0, |m| m.len());
    let before = own();
    let places =
        vec![ClassPlacement::default(), ClassPlacement { class: ClassId(-1), index: Index::All }];
    for turn in 0..20_000_u32 {
        let split = if turn % 2 == 0 { NodeSplit::Chunk(1) } else { NodeSplit::Os };
        let wish = Attributes { places: places.clone(), split, ..Attributes::default() };
        memory.allocate(Bytes(8192), wish).unwrap();
    }
    let after = own();
    assert!(after < before + 1000, "{before} mappings before, {after} after");
}

#[test]
fn the_environment_overrides_and_nonsense_is_named() {
    let with = |name: &'static str, value: &'static str| {
        Memory::live(&move |asked| (asked == name).then(|| value.to_owned()))
    };
    for (name, value) in [
        ("TERRACE_CLASSES", "x"),
        ("TERRACE_RANK_BY", "colour"),
        ("TERRACE_MACHINE", "/nonexistent"),
    ] {
        let error = with(name, value).unwrap_err();
        assert!(error.to_string().contains(value), "{error}");
    }
}

#[test]
fn every_size_is_given_whole_or_refused_by_name() {
    let Some(memory) = memory() else { return };
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for log in 0..64 {
        for size in [(1_u64 << log) - 1, 1 << log, (1 << log) + 1] {
            match memory.allocate(Bytes(size), Attributes::default()) {
                Ok(at) => {
                    let len = memory.size_of(at).unwrap().get() as usize;
                    assert!(at % 4096 == 0 && len as u64 >= size.max(1));
                    assert!(
                        taken.iter().all(|(a, l)| at + len <= *a || a + l <= at),
                        "{size} overlaps"
                    );
                    taken.push((at, len));
                }
                Err(error) => assert!(size > 1 << 36, "{size}: {error}"),
            }
        }
    }
    let error = memory.allocate(Bytes(u64::MAX), Attributes::default()).unwrap_err();
    assert!(error.to_string().contains("more than can be addressed"), "{error}");
    for (at, _) in taken {
        memory.free(at).unwrap();
        assert!(memory.free(at).is_err());
    }
}

#[test]
fn bytes_survive_any_sequence_of_calls() {
    let Some(memory) = memory() else { return };
    let mut seed = Seed(11);
    let mut draw = |below: u64| {
        let (number, next) = seed.next();
        seed = next;
        (number >> 11) % below
    };
    // Address, bytes, and what both ends hold.
    let mut live: Vec<(usize, usize, u8)> = Vec::new();
    for turn in 0..1500_u32 {
        match draw(10) {
            0..=4 if live.len() < 40 => {
                let size = if draw(4) == 0 { draw(6 << 20) } else { draw(40_000) };
                let split = vec![
                    NodeSplit::Os,
                    NodeSplit::SpillOver,
                    NodeSplit::Equal,
                    NodeSplit::Chunk(1 + draw(9)),
                ]
                .swap_remove(draw(4) as usize);
                let binding = if draw(2) == 0 { Binding::OnCommit } else { Binding::Immediate };
                let mismatch = if draw(8) == 0 { Mismatch::Error } else { Mismatch::Fallback };
                let wish = Attributes {
                    split,
                    binding,
                    mismatch,
                    priority: draw(5) as u32,
                    ..Attributes::default()
                };
                let at = memory.allocate(Bytes(size), wish).unwrap();
                let len = memory.size_of(at).unwrap().get() as usize;
                assert!(
                    live.iter().all(|(a, l, _)| at + len <= *a || a + l <= at),
                    "turn {turn} overlaps"
                );
                // SAFETY: a fresh allocation of `len` bytes, this test's alone.
                unsafe {
                    assert_eq!((at as *const u8).read() | ((at + len - 1) as *const u8).read(), 0);
                    (at as *mut u8).write(turn as u8);
                    ((at + len - 1) as *mut u8).write(turn as u8);
                }
                live.push((at, len, turn as u8));
            }
            5..=7 if !live.is_empty() => {
                let (at, ..) = live.swap_remove(draw(live.len() as u64) as usize);
                memory.free(at).unwrap();
            }
            8 => {
                let scope = if draw(2) == 0 { Scope::Epoch } else { Scope::All };
                assert_eq!(memory.commit(scope).unwrap().refused(), 0);
            }
            _ => {}
        }
        for (at, len, expected) in &live {
            // SAFETY: written when it was allocated, and not freed.
            let ends = unsafe { ((*at as *const u8).read(), ((at + len - 1) as *const u8).read()) };
            assert_eq!(ends, (*expected, *expected), "turn {turn}");
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn any_environment_is_read_or_refused_on_one_line(
        which in 0_usize..3,
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "0", "1", "-", ",", ";", "65536", "99999999999999999999", " ", "bandwidth", "\n",
            "\u{1b}[2J", "/dev/zero", "..",
            "preset:", "knl-snc4", "\u{0}", "%s", "lab-cxl", "/",
        ]), 0..8),
    ) {
        let name = ["TERRACE_CLASSES", "TERRACE_RANK_BY", "TERRACE_MACHINE"][which];
        let text = parts.concat();
        if let Err(error) = Memory::live(&|asked| (asked == name).then(|| text.clone())) {
            proptest::prop_assert!(!error.to_string().contains(['\n', '\u{1b}']), "{error:?}");
        }
    }
}

#[test]
fn files_that_never_end_or_are_none_are_refused() {
    for path in ["/dev/zero", "/proc/self/mem", "/nonexistent"] {
        let error = Memory::live(&|asked| (asked == "TERRACE_MACHINE").then(|| path.to_owned()))
            .unwrap_err();
        assert!(error.to_string().contains(path), "{error}");
    }
}
