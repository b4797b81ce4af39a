//! The persistency model against published outcomes, closed forms and a plain search.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::BTreeSet;
use terrace_crash::persist::{
    enumerate_images, find_misuse, MisuseKind, PersistentOperation as Op, ReorderEngine, LINE,
};
use terrace_crash::{DataObject, ImageLayout, ObjectKind};

const MANY: usize = 1 << 20;

/// One object at address 0.
fn layout(bytes: usize) -> ImageLayout {
    ImageLayout::new(&[DataObject {
        name: "all".into(),
        element_type: "char".into(),
        kind: ObjectKind::Critical,
        element_bytes: 1,
        address: 0,
        bytes: bytes as u64,
    }])
}

fn store(address: u64, value: &[u8]) -> Op {
    Op::Store { address, value: value.to_vec(), non_temporal: false, pc: address }
}

fn flush(address: u64) -> Op {
    Op::Flush { address, ordered: false, pc: 0x1000 + address }
}

fn fence() -> Op {
    Op::Fence { pc: 0x2000 }
}

/// pmreorder's flush example (PMDK, src/test/pmreorder_flushes): five fields, each a line of
/// equal bytes.
fn flush_example() -> Vec<Op> {
    let field = |name: u8| u64::from(name - b'A') * LINE;
    let write = |name, value: i8| store(field(name), &[value as u8; LINE as usize]);
    let persist = |name| flush(field(name));
    vec![
        write(b'A', -1),
        write(b'B', 2),
        write(b'C', 3),
        persist(b'A'),
        persist(b'B'),
        fence(),
        write(b'D', 4),
        persist(b'D'),
        fence(),
        write(b'D', 5),
        persist(b'D'),
        fence(),
        write(b'E', 6),
        persist(b'E'),
        fence(),
        write(b'A', 1),
        write(b'C', 8),
        persist(b'A'),
        persist(b'C'),
        fence(),
    ]
}

#[test]
fn the_flush_example_has_its_six_states() {
    let initial = [0; 5 * LINE as usize];
    let set = enumerate_images(
        &flush_example(),
        (&layout(initial.len()), &initial),
        ReorderEngine::None,
        MANY,
        1,
    );
    let states: Vec<Vec<i8>> = set
        .images
        .iter()
        .map(|(_, image)| {
            image
                .chunks(LINE as usize)
                .map(|line| {
                    assert!(line.iter().all(|byte| *byte == line[0]));
                    line[0] as i8
                })
                .collect()
        })
        .collect();
    let expected = [
        [0, 0, 0, 0, 0],
        [-1, 2, 0, 0, 0],
        [-1, 2, 0, 4, 0],
        [-1, 2, 0, 5, 0],
        [-1, 2, 0, 5, 6],
        [1, 2, 8, 5, 6],
    ];
    assert_eq!(states, expected);
}

#[test]
fn three_stores_have_sixteen_sequences() {
    let operations: Vec<Op> = (0..3)
        .map(|i| store(i * LINE, &[1]))
        .chain((0..3).map(|i| flush(i * LINE)))
        .chain([fence()])
        .collect();
    let initial = [0; 3 * LINE as usize];
    let of =
        |engine| enumerate_images(&operations, (&layout(initial.len()), &initial), engine, MANY, 1);
    let full = of(ReorderEngine::Full);
    assert_eq!((full.sequences, full.possible, full.images.len()), (16, 16.0, 8));
    assert_eq!(of(ReorderEngine::Accumulative).sequences, 3);
    let bits = |engine| -> Vec<u8> {
        let of_image = |image: &[u8]| (0..3).map(|i| image[i * LINE as usize] << i).sum();
        of(engine).images.iter().map(|(_, image)| of_image(image)).collect()
    };
    assert_eq!(bits(ReorderEngine::Accumulative), [0, 1, 3, 7]);
    assert_eq!(bits(ReorderEngine::ReverseAccumulative), [0, 4, 6, 7]);
    assert!(bits(ReorderEngine::Partial).len() <= 5);
}

#[test]
fn a_sequence_that_was_drawn_twice_counts_once() {
    let operations: Vec<Op> = (0..3).map(|i| store(i * LINE, &[1])).chain([fence()]).collect();
    let initial = [0; 3 * LINE as usize];
    for seed in 0..40 {
        let at = (&layout(initial.len()), &initial[..]);
        let sampled = enumerate_images(&operations, at, ReorderEngine::Hardware, 7, seed);
        assert!(sampled.sequences <= 2 * 8 && sampled.possible == 16.0, "{sampled:?}");
        assert_eq!(sampled.images.len(), 7);
        let flushed = [store(0, &[1]), flush(0), fence()];
        let partial = enumerate_images(&flushed, at, ReorderEngine::Partial, MANY, seed);
        assert!(partial.sequences as f64 <= partial.possible, "{partial:?}");
    }
}

#[test]
fn stores_to_one_line_keep_their_order_and_those_to_others_do_not() {
    let operations =
        [store(0, &[1]), store(1, &[1]), store(LINE, &[1]), flush(0), flush(LINE), fence()];
    let initial = [0; 2 * LINE as usize];
    let set = enumerate_images(
        &operations,
        (&layout(initial.len()), &initial),
        ReorderEngine::Hardware,
        MANY,
        1,
    );
    let states: BTreeSet<(u8, u8, u8)> =
        set.images.iter().map(|(_, i)| (i[0], i[1], i[LINE as usize])).collect();
    let expected = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1)];
    assert_eq!(states, BTreeSet::from(expected));
    assert_eq!(set.coverage(), 1.0);
}

#[test]
fn a_sample_tells_its_coverage() {
    let operations: Vec<Op> = (0..40).map(|i| store(i * LINE, &[1])).collect();
    let initial = vec![0; 40 * LINE as usize];
    let set = enumerate_images(
        &operations,
        (&layout(initial.len()), &initial),
        ReorderEngine::Hardware,
        100,
        7,
    );
    assert_eq!(set.images.len(), 100);
    assert_eq!(set.possible, 2f64.powi(40));
    assert!(set.coverage() < 1e-9);
}

#[test]
fn each_misuse_is_found_at_its_instruction() {
    let kinds = |operations: &[Op]| -> Vec<(MisuseKind, u64)> {
        find_misuse(operations).iter().map(|m| (m.kind, m.pc)).collect()
    };
    assert_eq!(kinds(&[store(0, &[1]), flush(0), fence()]), []);
    assert_eq!(
        kinds(&[store(8, &[1]), store(64, &[1]), flush(64), fence(), flush(8), fence()]),
        [(MisuseKind::MissingFlush, 8)]
    );
    assert_eq!(kinds(&[store(8, &[1]), flush(8)]), [(MisuseKind::MissingFence, 8)]);
    assert_eq!(kinds(&[store(8, &[1]), fence()]), [(MisuseKind::NeverPersisted, 8)]);
    assert_eq!(
        kinds(&[store(8, &[1]), flush(8), store(9, &[2]), fence(), flush(8), fence()]),
        // The second store is also behind: the first became persistent, and it was later.
        [(MisuseKind::WrittenBetweenFlushAndFence, 9)]
    );
    assert_eq!(
        kinds(&[store(8, &[1]), flush(8), flush(9), fence()]),
        [(MisuseKind::DoubleFlush, 0x1009)]
    );
    assert_eq!(kinds(&[flush(64)]), [(MisuseKind::CleanFlush, 0x1040)]);
    // CLFLUSH needs no fence.
    let ordered = Op::Flush { address: 0, ordered: true, pc: 0 };
    assert_eq!(kinds(&[store(0, &[1]), ordered]), []);
    // A non-temporal store needs no flush.
    let direct = Op::Store { address: 0, value: vec![1], non_temporal: true, pc: 0 };
    assert_eq!(kinds(&[direct, fence()]), []);
}

fn operation() -> impl Strategy<Value = Op> {
    let address = 0..3 * LINE;
    prop_oneof![
        5 => (address.clone(), 1..255u8, any::<bool>()).prop_map(|(address, value, non_temporal)| {
            Op::Store { address, value: vec![value], non_temporal, pc: 0 }
        }),
        3 => (address, any::<bool>())
            .prop_map(|(address, ordered)| Op::Flush { address, ordered, pc: 0 }),
        2 => Just(fence()),
    ]
}

/// All images by brute force: at each moment, each line may hold any of the contents that it had
/// since it was persistent last.
fn plain_images(operations: &[Op]) -> BTreeSet<Vec<u8>> {
    let size = 3 * LINE as usize;
    let mut lines: Vec<Vec<Vec<u8>>> = vec![vec![vec![0; LINE as usize]]; 3];
    let mut flushed: Vec<usize> = vec![0; 3];
    let mut all = BTreeSet::from([vec![0; size]]);
    for operation in operations {
        match operation {
            Op::Store { address, value, non_temporal, .. } => {
                let line = (address / LINE) as usize;
                let mut content = lines[line].last().unwrap().clone();
                content[(address % LINE) as usize] = value[0];
                lines[line].push(content);
                if *non_temporal {
                    flushed[line] = lines[line].len() - 1;
                }
            }
            Op::Flush { address, ordered, .. } => {
                let line = (address / LINE) as usize;
                flushed[line] = lines[line].len() - 1;
                if *ordered {
                    lines[line].drain(..flushed[line]);
                    flushed[line] = 0;
                }
            }
            Op::Fence { .. } => {
                for (line, flushed) in lines.iter_mut().zip(&mut flushed) {
                    line.drain(..*flushed);
                    *flushed = 0;
                }
            }
        }
        for a in &lines[0] {
            for b in &lines[1] {
                for c in &lines[2] {
                    all.insert([a.as_slice(), b, c].concat());
                }
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn hardware_leaves_what_a_plain_search_finds(
        operations in proptest::collection::vec(operation(), 1..14),
    ) {
        let initial = [0; 3 * LINE as usize];
        let set = enumerate_images(&operations, (&layout(initial.len()), &initial),
            ReorderEngine::Hardware, MANY, 1);
        let ours: BTreeSet<Vec<u8>> = set.images.into_iter().map(|(_, image)| image).collect();
        prop_assert_eq!(ours, plain_images(&operations));
    }
}
