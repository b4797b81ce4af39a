//! Random instructions here and under `qemu-riscv64`: all registers and flags are the same after
//! every few of them.
//!
//! A program is made that loads registers, executes random words with pauses in which it stores
//! its whole state, and writes the states to its output. `TERRACE_LOCKSTEP_ROUNDS` sets how many
//! programs are made, and `TERRACE_LOCKSTEP_FIRST` which one is the first; the seed is in the
//! failure. With `--nocapture` it prints how far it is.

use crate::compressed::expand;
use crate::decode::{Instruction, Layout, Op, TABLE};
use crate::linux::{Errno, GuestFileStatus, Host, Process, ProcessEnd};
use std::process::Command;

/// States stored by a program, and random instructions before each.
const STATES: usize = 2000;
const PER_STATE: usize = 8;
/// Random instructions of a program, two to a word where they are compressed.
const ROUND_WORDS: u64 = (STATES * PER_STATE) as u64;
/// Bytes of a state: 31 integer registers, `fcsr` in the place of `x0`, 32 others.
const STATE_BYTES: usize = 512;
/// Instructions that store a state.
const SAVE_WORDS: usize = 31 + 32 + 6;
/// Where the program, its data and the states lie.
const CODE: u64 = 0x10000;
const DATA: u64 = 0x100_0000;
const OUTPUT: u64 = 0x200_0000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    /// A value near edges of integers and numbers as often as not.
    fn value(&mut self) -> u64 {
        const EDGES: [u64; 12] = [
            0,
            1,
            u64::MAX,
            1 << 63,
            i64::MAX as u64,
            0x7ff0_0000_0000_0000,
            0x7ff8_0000_0000_0001,
            0x7ff0_0000_0000_0001,
            0x000f_ffff_ffff_ffff,
            0xffff_ffff_7f80_0000,
            0xffff_ffff_7f80_0001,
            0xffff_ffff_0000_0001,
        ];
        let bits = self.next();
        match self.below(5) {
            0 => EDGES[self.below(12) as usize],
            1 => (bits as i32 as f64).to_bits(),
            2 => u64::from((bits as i16 as f32).to_bits()) | !0 << 32,
            3 => (0x3fe0_0000_0000_0000 | bits >> 12) ^ (bits & 1) << 63,
            _ => bits >> self.below(64),
        }
    }
}

/// Registers 3 (where the states go) and 4 (where data lies) keep their values.
fn is_fit(i: Instruction, floating: bool) -> bool {
    floating || !(3..=4).contains(&i.rd)
}

/// A random instruction that stays within the program and its data.
fn random_word(random: &mut Random, wide: bool) -> u32 {
    loop {
        let (op, pattern, layout) = TABLE[random.below(TABLE.len() as u64) as usize];
        let mut word = pattern | random.next() as u32 & !layout.mask();
        let base_is_data = word & !(31 << 15) | 4 << 15;
        match layout {
            Layout::J | Layout::Fence | Layout::Exact => continue,
            _ if op == Op::Jalr => continue,
            // QEMU before 8.0 counts past bit 31; the manual says 32. See the test in `execute`.
            _ if op == Op::Ctzw => continue,
            // QEMU stores and reports failure where `sc.w` follows `lr.d`: one width a program.
            _ if matches!(op, Op::LrW | Op::ScW) && wide => continue,
            _ if matches!(op, Op::LrD | Op::ScD) && !wide => continue,
            // Over the next instruction or not.
            Layout::B => word = word & 0x01ff_f07f | 4 << 8,
            Layout::FI | Layout::FS | Layout::S | Layout::Amo | Layout::Lr => word = base_is_data,
            Layout::I if word & 0x7f == 3 => word = base_is_data,
            Layout::Csr => {
                // fflags by anything, the rounding mode to one that there is.
                let mode = random.below(5) as u32;
                word = word & 0x000f_ffff | 1 << 20;
                if random.below(2) == 0 {
                    word = 0x0020_5073 | mode << 15 | word & 0xf80;
                }
            }
            Layout::R4 | Layout::FR | Layout::FU => {
                let mode = [0, 1, 2, 3, 4, 7][random.below(6) as usize];
                word = word & !0x7000 | mode << 12;
            }
            _ => {}
        }
        let i = Instruction::decode(word);
        assert_eq!(i.op, op_of(word, op), "{word:#x}");
        let floating = matches!(layout, Layout::FI | Layout::FS | Layout::R4 | Layout::B);
        if is_fit(i, floating || layout == Layout::S) {
            return word;
        }
    }
}

/// What a word changed above decodes to.
fn op_of(word: u32, op: Op) -> Op {
    if word & 0xfff0_707f == 0x0020_5073 {
        Op::Csrrwi
    } else {
        op
    }
}

/// A random compressed instruction that neither jumps nor accesses memory.
fn random_half(random: &mut Random) -> u16 {
    loop {
        let half = random.next() as u16;
        let Some(full) = expand(half) else { continue };
        let i = Instruction::decode(full);
        let computes = matches!(full & 0x7f, 0x13 | 0x1b | 0x33 | 0x3b | 0x37);
        if computes && is_fit(i, false) {
            return half;
        }
    }
}

/// The program's file.
fn program(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut code: Vec<u8> = Vec::new();
    let mut put = |word: u32| code.extend_from_slice(&word.to_le_bytes());
    let lui = |rd: u32, address: u64| 0x37 | rd << 7 | address as u32 & 0xffff_f000;
    let load = |opcode: u32, rd: u32, offset: u32| opcode | rd << 7 | 4 << 15 | offset << 20;
    let store = |opcode: u32, rs2: u32, offset: u32| {
        opcode | (offset & 31) << 7 | 3 << 15 | rs2 << 20 | (offset >> 5) << 25
    };
    put(lui(4, DATA + 0x1000));
    put(lui(3, OUTPUT));
    for register in (0..32).filter(|r| !(3..=4).contains(r)) {
        put(load(0x3003, register, 8 * register));
    }
    for register in 0..32 {
        put(load(0x3007, register, 256 + 8 * register));
    }
    // Stores the state: one copy for all, which the oracle translates once.
    let link = link_register(seed);
    put(jump(0, 4 * (1 + SAVE_WORDS as i32)));
    for register in 1..32 {
        put(store(0x3023, register, 8 * register));
    }
    for register in 0..32 {
        put(store(0x3027, register, 256 + 8 * register));
    }
    // The flags, and in the place of x4 what atomics change.
    let spare = 6 - link;
    put(0x0030_2073 | spare << 7);
    put(store(0x3023, spare, 0));
    put(load(0x3003, spare, 0));
    put(store(0x3023, spare, 32));
    // The next state's place.
    put(0x13 | 3 << 7 | 3 << 15 | (STATE_BYTES as u32) << 20);
    put(0x67 | link << 15);
    for state in 0..STATES {
        for _ in 0..PER_STATE {
            if random.below(4) == 0 {
                let pair =
                    random_half(&mut random) as u32 | (random_half(&mut random) as u32) << 16;
                put(pair);
            } else {
                put(random_word(&mut random, seed & 1 == 0));
            }
        }
        // What the last branch may jump over.
        put(0x13);
        let back = SAVE_WORDS + state * (PER_STATE + 2) + PER_STATE + 1;
        put(jump(link, -4 * back as i32));
    }
    // write(1, OUTPUT, length); exit(0)
    let length = (STATES * STATE_BYTES) as u64;
    assert_eq!(length % 4096, 0, "lui alone loads it");
    for word in [0x0010_0513, lui(11, OUTPUT), lui(12, length)] {
        put(word);
    }
    for word in [0x0400_0893, 0x73, 0x0000_0513, 0x05d0_0893, 0x73] {
        put(word);
    }
    let data: Vec<u8> = (0..1024).flat_map(|_| random.value().to_le_bytes()).collect();
    elf(&code, &data)
}

/// The register that a jump to the code that stores states clobbers; every second pair of programs
/// has another one, so that each register is compared.
fn link_register(seed: u64) -> u32 {
    if seed & 2 == 0 {
        1
    } else {
        5
    }
}

/// `jal` over so many bytes.
fn jump(rd: u32, bytes: i32) -> u32 {
    let to = bytes as u32;
    let (sign, high) = (to >> 20 & 1, to >> 12 & 0xff);
    0x6f | rd << 7 | high << 12 | (to >> 11 & 1) << 20 | (to >> 1 & 0x3ff) << 21 | sign << 31
}

/// An ELF file of three segments.
fn elf(code: &[u8], data: &[u8]) -> Vec<u8> {
    let at = 64 + 3 * 56;
    let mut file = vec![0; at];
    let mut put = |at: usize, value: u64, size: usize| {
        file[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    put(0, u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0"), 8);
    for (at, value) in [(16, 2), (18, 243), (52, 64), (54, 56), (56, 3)] {
        put(at, value, 2);
    }
    put(20, 1, 4);
    // Double floats, compressed instructions.
    put(48, 5, 4);
    let code_at = at.next_multiple_of(4096);
    let data_at = (code_at + code.len()).next_multiple_of(4096);
    put(24, CODE, 8);
    put(32, 64, 8);
    let rows = [
        (5, code_at, CODE, code.len(), code.len()),
        (6, data_at, DATA, data.len(), data.len()),
        (6, data_at + data.len(), OUTPUT, 0, STATES * STATE_BYTES),
    ];
    for (row, (flags, offset, address, in_file, in_memory)) in rows.into_iter().enumerate() {
        let at = 64 + 56 * row;
        put(at, 1, 4);
        put(at + 4, flags, 4);
        let fields = [offset as u64, address, address, in_file as u64, in_memory as u64, 4096];
        for (i, value) in fields.into_iter().enumerate() {
            put(at + 8 + 8 * i, value, 8);
        }
    }
    file.resize(code_at, 0);
    file.extend_from_slice(code);
    file.resize(data_at, 0);
    file.extend_from_slice(data);
    file
}

#[derive(Debug, Default)]
struct Output(Vec<u8>);

impl Host for Output {
    fn read(&mut self, _: i32, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
    fn write(&mut self, _: i32, bytes: &[u8]) -> Result<usize, Errno> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn open(&mut self, _: &[u8], _: u32, _: u32) -> Result<i32, Errno> {
        Err(Errno(2))
    }
    fn close(&mut self, _: i32) -> Result<(), Errno> {
        Ok(())
    }
    fn seek(&mut self, _: i32, _: i64, _: u32) -> Result<u64, Errno> {
        Err(Errno(29))
    }
    fn status(&mut self, _: i32) -> Result<GuestFileStatus, Errno> {
        Err(Errno(9))
    }
    fn now_ns(&mut self, _: u32) -> u64 {
        0
    }
    fn sleep_ns(&mut self, _: u64) {}
    fn fill_random(&mut self, _: &mut [u8]) {}
}

/// The random words before state `state`, decoded, to be named in a failure.
fn words_before(file: &[u8], state: usize) -> Vec<String> {
    let at = 4096 + 4 * (2 + 30 + 32 + 1 + SAVE_WORDS + state * (PER_STATE + 2));
    file[at..at + 4 * PER_STATE]
        .chunks(4)
        .map(|bytes| {
            let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let name = |word| Instruction::decode(word).op.name();
            if word & 3 == 3 {
                format!("{word:08x} {}", name(word))
            } else {
                format!("{word:08x} {}, {}", name(word), name(word >> 16))
            }
        })
        .collect()
}

#[test]
fn random_instructions_leave_the_state_that_the_oracle_leaves() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let first = number("TERRACE_LOCKSTEP_FIRST").unwrap_or(1);
    let rounds = number("TERRACE_LOCKSTEP_ROUNDS").unwrap_or(10);
    let folder = std::env::temp_dir().join(format!("terrace-lockstep-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for round in first..first + rounds {
        let seed = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let file = program(seed);
        let path = folder.join("program");
        std::fs::write(&path, &file).unwrap();
        let mut permissions = std::fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        std::fs::set_permissions(&path, permissions).unwrap();
        let mut oracle = Command::new("qemu-riscv64");
        let oracle = oracle.args(["-cpu", "rv64,zba=true,zbb=true"]).arg(&path).output();
        let Ok(expected) = oracle else {
            println!("skipped: qemu-riscv64 is not installed");
            break;
        };
        let mut process = Process::new(&file, &[], &[], 1 << 26, Output::default()).unwrap();
        let end = process.run(&mut (), 10_000_000);
        assert_eq!(end, ProcessEnd::Exit(0), "round {round}");
        assert_eq!(expected.stdout.len(), STATES * STATE_BYTES, "round {round}: {expected:?}");
        assert_eq!(process.host().0.len(), STATES * STATE_BYTES, "round {round}");
        let states = process.host().0.chunks(STATE_BYTES).zip(expected.stdout.chunks(STATE_BYTES));
        for (state, (ours, theirs)) in states.enumerate() {
            let words = ours.chunks(8).zip(theirs.chunks(8));
            let wrong: Vec<String> = words
                .enumerate()
                .filter(|(_, (a, b))| a != b)
                .map(|(i, (a, b))| {
                    let value = |b: &[u8]| b.iter().rev().map(|b| format!("{b:02x}")).collect();
                    let (a, b): (String, String) = (value(a), value(b));
                    format!("{}{}: {a}, not {b}", if i < 32 { "x" } else { "f" }, i % 32)
                })
                .collect();
            let before = words_before(&file, state);
            assert!(wrong.is_empty(), "round {round} state {state}: {wrong:?} after {before:#?}");
        }
        if round % 100 == 0 {
            println!("round {round}: {} instructions agree", (round + 1 - first) * ROUND_WORDS);
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
