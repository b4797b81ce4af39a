//! The printer against the disassembler of Debian's cross compiler, and the same of a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use terrace_riscv::decode::{Instruction, Op};

/// Every four-byte instruction of a static program prints as under `objdump -M no-aliases`.
#[test]
fn a_program_prints_as_under_the_disassembler() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("disasm-mix");
    let compiled = Command::new("riscv64-linux-gnu-gcc")
        .args(["-O2", "-static", "-pthread", "-march=rv64g_zba_zbb"])
        .arg(here.join("tests/programs/mix.c"))
        .arg("-lm")
        .arg("-o")
        .arg(&program)
        .status();
    let objdump = Command::new("riscv64-linux-gnu-objdump")
        .args(["-d", "-M", "no-aliases"])
        .arg(&program)
        .output();
    let (Ok(compiled), Ok(objdump)) = (compiled, objdump) else {
        println!("skipped: riscv64-linux-gnu-gcc and -objdump are not installed");
        return;
    };
    assert!(compiled.success());
    let listing = String::from_utf8(objdump.stdout).unwrap();
    let (mut compared, mut seen) = (0, BTreeSet::new());
    let mut differing = BTreeMap::new();
    for line in listing.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let (Some(at), Some(word), Some(name)) = (fields.first(), fields.get(1), fields.get(2))
        else {
            continue;
        };
        let (Some(at), word) = (at.trim().strip_suffix(':'), word.trim()) else { continue };
        let (Ok(pc), Ok(bits)) = (u64::from_str_radix(at, 16), u32::from_str_radix(word, 16))
        else {
            continue;
        };
        let instruction = Instruction::decode(bits);
        if word.len() != 8 || instruction.op == Op::Illegal {
            continue;
        }
        let operands = fields.get(3).map(|text| text.split([' ', '#']).next().unwrap_or(""));
        let expected = match operands {
            Some(operands) if !operands.is_empty() => format!("{name}\t{operands}"),
            _ => (*name).to_owned(),
        };
        let printed = instruction.print(pc, bits);
        if printed != expected {
            differing.insert(instruction.op.name(), format!("{printed}, not {expected}"));
        }
        seen.insert(instruction.op.name());
        compared += 1;
    }
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(compared > 20_000 && seen.len() > 100, "{compared} of {} kinds", seen.len());
}
