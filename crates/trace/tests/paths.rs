//! Words taken a path at a time, and runs of hooks' words, give the same file, byte for byte, as
//! words taken one by one.
#![allow(clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::prelude::*;
use terrace_trace::capture::{Capture, CaptureTotals, Filter};
use terrace_trace::{TraceHeader, TraceWriter};

const MESSAGE: u64 = 9 << 60;
const BLOCK: u64 = 8 << 60;

/// An instruction: its code, and the pieces of its accesses: log2 of the bytes, and 8 for a store.
type Made = (&'static [u8], &'static [u64]);
const INSTRUCTIONS: [Made; 12] = [
    (&[0x48, 0x8b, 0x00], &[3]),             // mov rax, [rax]
    (&[0x48, 0x63, 0x04, 0x96], &[2]),       // movsxd rax, [rsi+rdx*4]
    (&[0xf2, 0x0f, 0x10, 0x04, 0xc7], &[3]), // movsd xmm0, [rdi+rax*8]
    (&[0x0f, 0x10, 0x07], &[3, 3]),          // movups xmm0, [rdi]
    (&[0x0f, 0x11, 0x03], &[11, 11]),        // movups [rbx], xmm0
    (&[0x89, 0x0b], &[10]),                  // mov [rbx], ecx
    (&[0x48, 0x01, 0x0b], &[3, 11]),         // add [rbx], rcx
    (&[0x58], &[3]),                         // pop rax
    (&[0x53], &[11]),                        // push rbx
    (&[0x48, 0xff, 0xc2], &[]),              // inc rdx
    (&[0x31, 0xc9], &[]),                    // xor ecx, ecx
    (&[0x48, 0x8d, 0x1c, 0x08], &[]),        // lea rbx, [rax+rcx]
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

/// A program of a few blocks, and how it and its machine behave.
struct Program {
    random: Random,
    blocks: Vec<Vec<usize>>,
    addresses: Vec<u64>,
    /// One block in so many is cut off, comes with other accesses, is followed by a message, ...
    odd: u64,
    /// What stores write follows them.
    values: bool,
    words: Vec<u64>,
}

impl Program {
    fn new(seed: u64, blocks: usize, odd: u64, values: bool) -> Self {
        let mut random = Random(seed | 1);
        let blocks = (0..blocks)
            .map(|_| {
                (0..1 + random.below(9))
                    .map(|_| random.below(INSTRUCTIONS.len() as u64) as usize)
                    .collect()
            })
            .collect();
        let addresses = (0..256).map(|_| 0x7f00_0000_0000 + random.below(1 << 20)).collect();
        Self { random, blocks, addresses, odd, values, words: Vec::new() }
    }

    fn report_block(&mut self, number: usize, pc: u64) {
        let block = &self.blocks[number];
        let mut code: Vec<u8> = block.iter().flat_map(|i| INSTRUCTIONS[*i].0).copied().collect();
        let (count, bytes) = (block.len() as u64, code.len() as u64);
        code.resize(code.len().next_multiple_of(8), 0);
        let content = 4 + code.len() as u64 / 8;
        self.words.extend([MESSAGE | 2 | content << 16, number as u64 + 1, pc, count, bytes]);
        self.words.extend(code.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())));
    }

    fn execute(&mut self, number: usize) {
        let block = self.blocks[number].clone();
        self.words.push(BLOCK | (number as u64 + 1) | (block.len() as u64) << 32);
        for (index, instruction) in block.iter().enumerate() {
            let place = (number * 16 + index) % self.addresses.len();
            let jump = match self.random.below(40) {
                0 => self.random.below(1 << 47),
                1 => self.random.below(1 << 18),
                // Steps of two bytes now and then; large ones, always the same, or the same twice
                // now and then.
                _ if place % 7 == 4 => 8 + 292 * u64::from(self.random.below(9) == 0),
                _ if place % 7 == 5 => 1 << 20,
                _ if place % 7 == 6 => (1 + self.random.below(2)) << 20,
                _ => 8 * self.random.below(3),
            };
            let address = self.addresses[place].wrapping_add(jump) & 0xffff_ffff_ffff;
            self.addresses[place] = address;
            for (i, kind) in INSTRUCTIONS[*instruction].1.iter().enumerate() {
                // Pieces follow each other, mostly.
                let apart = if self.random.below(30) == 0 { 0 } else { 8 * i as u64 };
                let at = if kind & 7 == 3 && kind >> 3 == INSTRUCTIONS[*instruction].1[0] >> 3 {
                    apart
                } else {
                    0
                };
                self.words
                    .push((address + at) & 0xffff_ffff_ffff | kind << 48 | (index as u64) << 52);
                if self.values && kind & 8 != 0 {
                    // Any value: those of blocks, of messages and of accesses, too.
                    let value = self.random.below(1 << 53) << 11 | self.random.below(1 << 11);
                    self.words.push(value);
                }
            }
        }
        if self.random.below(self.odd) == 0 {
            self.be_odd(number);
        }
    }

    fn be_odd(&mut self, number: usize) {
        match self.random.below(9) {
            0 => drop(self.words.pop()),
            1 => self.words.push(0x1000 | 3 << 48 | self.random.below(12) << 52),
            2 => self.words.extend([MESSAGE | 4 | 1 << 16, self.random.below(1000)]),
            3 => self.words.extend([MESSAGE | 7 | 1 << 16, 5]),
            4 => self.words.extend([MESSAGE | 5 | 5 << 16, 0x1000, 0x2000, 3, 2, 0]),
            5 => self.words.push(BLOCK | 999_999 | 7 << 32),
            6 => self.report_block(number, 0x9_0000),
            7 => self.words.push(self.random.below(u64::MAX)),
            _ => self.words.push(0xffff_ffff_fff8 | 3 << 48),
        }
    }

    /// Loops within loops, with branches.
    fn run(mut self, steps: usize) -> Vec<u64> {
        self.words.extend([MESSAGE | 1 | 4 << 16, 100, 100, 0, 0]);
        for number in 0..self.blocks.len() {
            // Some blocks lie within others, and one at 0.
            self.report_block(number, 0x40_0000 * (number as u64 / 2));
        }
        let mut at = 0;
        for _ in 0..steps {
            self.execute(at);
            at = match self.random.below(12) {
                0 => self.random.below(self.blocks.len() as u64) as usize,
                1..4 => at.saturating_sub(2),
                _ => (at + 1) % self.blocks.len(),
            };
        }
        self.words
    }
}

/// Which columns a trace has.
#[derive(Clone, Copy, Default)]
struct Kept {
    pcs: bool,
    values: bool,
}

fn capture(
    words: &[Vec<u64>],
    cut: usize,
    filter: &Filter,
    kept: Kept,
    by_path: bool,
) -> (CaptureTotals, Vec<u8>) {
    let header = TraceHeader { pcs: kept.pcs, values: kept.values, ..TraceHeader::default() };
    let mut capture =
        Capture::new(TraceWriter::new(Vec::new(), &header).unwrap(), filter.clone(), kept.values);
    if !by_path {
        capture = capture.without_paths();
    }
    // The threads take turns.
    let mut parts: Vec<_> = words.iter().map(|words| (words.chunks(cut), Vec::new())).collect();
    loop {
        let mut came = false;
        for (slot, (parts, left)) in parts.iter_mut().enumerate() {
            let part = parts.next();
            came |= part.is_some();
            left.extend_from_slice(part.unwrap_or_default());
            let used = capture.feed(slot as u32, left, part.is_none()).unwrap();
            left.drain(..used);
        }
        if !came {
            return capture.finish().unwrap();
        }
    }
}

/// A loop all of whose accesses are encoded whole comes to the end of a block of the trace within a
/// turn.
#[test]
fn a_random_loop_is_encoded_equally_across_block_ends() {
    for loads in 1..12 {
        let mut random = Random(7 + loads);
        let mut words = vec![MESSAGE | 1 | 4 << 16, 100, 100, 0, 0];
        // mov rax, [rax]
        let mut code: Vec<u8> = (0..loads).flat_map(|_| [0x48, 0x8b, 0x00]).collect();
        let bytes = code.len() as u64;
        code.resize(code.len().next_multiple_of(8), 0);
        words.extend([MESSAGE | 2 | (4 + code.len() as u64 / 8) << 16, 1, 0x40_0000, loads, bytes]);
        words.extend(code.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())));
        for _ in 0..100_000 / loads {
            words.push(BLOCK | 1 | loads << 32);
            words.extend((0..loads).map(|index| random.below(1 << 47) | 3 << 48 | index << 52));
        }
        words.push(BLOCK | 1 | loads << 32);
        let words = [words];
        let one_by_one = capture(&words, 10_000, &Filter::default(), Kept::default(), false);
        // Cut in many ways, so that turns are looked for behind any access of a block.
        for turns in [3, 4, 5, 7, 10, 1000] {
            let by_path = capture(
                &words,
                turns * (loads as usize + 1) + 1,
                &Filter::default(),
                Kept::default(),
                true,
            );
            assert!(one_by_one == by_path, "{loads} loads, {turns} turns");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn both_encoders_agree_on_programs(
        seeds in vec(any::<u64>(), 1..3),
        blocks in 1usize..12,
        steps in prop_oneof![6 => 10usize..2000, 1 => 20_000usize..40_000],
        odd in prop_oneof![Just(4u64), Just(50), Just(u64::MAX)],
        cut in prop_oneof![2usize..40, 1000usize..20_000],
        pcs in any::<bool>(),
        values in any::<bool>(),
        begins_later in prop_oneof![5 => Just(false), 1 => Just(true)],
    ) {
        let kept = Kept { pcs, values };
        let program = |seed: &u64| Program::new(*seed, blocks, odd, values).run(steps);
        let words: Vec<_> = seeds.iter().map(program).collect();
        let filter = Filter { begins_later, ..Filter::default() };
        let one_by_one = capture(&words, cut, &filter, kept, false);
        let by_path = capture(&words, cut, &filter, kept, true);
        prop_assert_eq!(one_by_one.0, by_path.0);
        prop_assert!(one_by_one.1 == by_path.1);
        prop_assert!(begins_later || one_by_one.0.kept > 0 || blocks == 1);
    }

    #[test]
    fn both_encoders_agree_on_hooks(seed in any::<u64>(), runs in 1u64..40, pcs in any::<bool>(),
        cut in prop_oneof![2usize..40, 1000usize..20_000]) {
        let mut random = Random(seed | 1);
        let mut words = vec![MESSAGE | 1 | 4 << 16, 100, 100, 0, 0, MESSAGE | 11];
        for _ in 0..runs {
            let (start, place) = (random.below(1 << 47), random.below(0x7ff));
            for i in 0..random.below(4000) {
                let (kind, place) = ((i % 3 * 8) & 8 | random.below(5), (place + i % 3) & 0x7ff);
                let address = start + 8 * i + random.below(2) * random.below(200_000);
                words.push(address | kind << 48 | place << 52);
            }
            match random.below(4) {
                0 => words.extend([MESSAGE | 4 | 1 << 16, random.below(1 << 40)]),
                1 => words.extend([MESSAGE | 12 | 3 << 16, 0x1000, 64, 0]),
                2 => words.push(BLOCK | 5 | 3 << 32),
                _ => words.push(MESSAGE | random.below(13)),
            }
        }
        let words = [words];
        let kept = Kept { pcs, ..Kept::default() };
        let one_by_one = capture(&words, cut, &Filter::default(), kept, false);
        prop_assert!(one_by_one == capture(&words, cut, &Filter::default(), kept, true));
    }

    #[test]
    fn both_encoders_agree_on_nonsense(words in vec(word(), 0..400), again in 1usize..6,
        cut in 2usize..60, pcs in any::<bool>(), values in any::<bool>()) {
        let kept = Kept { pcs, values };
        let words: Vec<u64> = (0..again).flat_map(|_| words.iter().copied()).collect();
        let words = [words];
        prop_assert_eq!(
            capture(&words, cut, &Filter::default(), kept, false),
            capture(&words, cut, &Filter::default(), kept, true)
        );
    }
}

/// Found by proptest: a hook's word behind a block was taken for the block's access.
#[test]
fn both_encoders_agree_on_hooks_within_blocks() {
    let code = u64::from_le_bytes([0x48, 0x8b, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf8]);
    let mut words = vec![
        MESSAGE | 1 | 4 << 16,
        1,
        1,
        0,
        0,
        MESSAGE | 2 | 5 << 16,
        1,
        0x1000,
        3,
        8,
        code,
        MESSAGE | 11,
    ];
    words.extend((0..20).flat_map(|i| [BLOCK | 1 | 3 << 32, (0x5000 + 8 * i) | 3 << 48]));
    let words = [words];
    let [one_by_one, by_path] =
        [false, true].map(|by| capture(&words, 1000, &Filter::default(), Kept::default(), by));
    assert_eq!(one_by_one.0.instructions, 20 * 3 + 20);
    assert_eq!(one_by_one, by_path);
}

/// Words of few kinds, so that they make rows that come again.
fn word() -> impl Strategy<Value = u64> {
    let code = u64::from_le_bytes([0x48, 0x8b, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf8]);
    prop_oneof![
        6 => (0u64..3, 0u64..6).prop_map(|(block, length)| BLOCK | block | length << 32),
        6 => (0u64..64, 0u64..16, 0u64..4)
            .prop_map(|(at, kind, index)| at << 3 | kind << 48 | index << 52),
        1 => any::<u64>(),
        1 => (0u64..13, 0u64..6).prop_map(|(which, length)| MESSAGE | which | length << 16),
        1 => Just(MESSAGE | 1 | 4 << 16),
        1 => Just(MESSAGE | 2 | 5 << 16),
        1 => Just(code),
        1 => 0u64..9,
    ]
}
