//! valgrind's lackey: lines `I  ADDRESS,SIZE` for instructions, ` L`, ` S` and ` M` (a load and a
//! store) for data.

use super::{hex, ImportedLine, Importer};
use crate::error::TraceError;
use crate::event::{Access, TraceHeader};
use crate::write::TraceWriter;
use std::io::Write;

/// What the lines before said.
#[derive(Debug, Default)]
pub struct Lackey {
    pc: u64,
    instructions: u64,
}

impl<W: Write> Importer<W> for Lackey {
    fn line(
        &mut self,
        writer: &mut TraceWriter<W>,
        line: &str,
    ) -> Result<ImportedLine, TraceError> {
        let Some((what, address, size)) = parse(line) else {
            return Ok(if is_message(line) { ImportedLine::Remark } else { ImportedLine::Unknown });
        };
        if what == 'I' {
            self.pc = address;
            self.instructions += 1;
            return Ok(ImportedLine::Record(0));
        }
        let mut count = 0;
        for store in [false, true] {
            if what == 'M' || store == (what == 'S') {
                let all = std::mem::take(&mut self.instructions);
                let gap = u32::try_from(all).unwrap_or(u32::MAX);
                writer.advance(0, 0, all - u64::from(gap))?;
                writer.access(
                    0,
                    0,
                    &Access { address, size, store, depends: 0, gap, pc: self.pc },
                )?;
                count += 1;
            }
        }
        Ok(ImportedLine::Record(count))
    }

    fn header(&self) -> TraceHeader {
        TraceHeader {
            source: "lackey".into(),
            notes: vec!["threads are not distinguished".into()],
            pcs: true,
            ..TraceHeader::default()
        }
    }
}

/// A message of valgrind's: `==PID== TEXT`, `--PID-- TEXT` or `**PID** TEXT`.
fn is_message(line: &str) -> bool {
    ["==", "--", "**"].into_iter().any(|mark| {
        let rest = line.trim_start().strip_prefix(mark).and_then(|rest| rest.split_once(mark));
        rest.is_some_and(|(pid, _)| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()))
    })
}

fn parse(line: &str) -> Option<(char, u64, u32)> {
    let (what, rest) = match line.as_bytes() {
        [b'I', b' ', ..] => ('I', &line[1..]),
        [b' ', what @ (b'L' | b'S' | b'M'), b' ', ..] => (char::from(*what), &line[2..]),
        _ => return None,
    };
    let (address, size) = rest.trim().split_once(',')?;
    // The largest access of one instruction, XSAVE of all state with AMX, is some 11 KiB.
    let size = size.parse().ok().filter(|size| (1..=65_536).contains(size))?;
    Some((what, hex(address)?, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_distinguished() {
        assert_eq!(parse("I  04016b80,3"), Some(('I', 0x0401_6b80, 3)));
        assert_eq!(parse(" S 1ffefffe78,8"), Some(('S', 0x1f_feff_fe78, 8)));
        assert_eq!(parse(" M 0421c7cc,4"), Some(('M', 0x0421_c7cc, 4)));
        for other in [
            "==12== Lackey",
            " L",
            " L zz,4",
            " L 10,x",
            "",
            "I",
            " X 10,4",
            " L 10,99999999999",
            " L 10,0",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn messages_of_valgrind_are_no_foreign_lines() {
        assert!(is_message("==12== Lackey, an example Valgrind tool") && is_message("--7-- x"));
        assert!(!is_message("==== title ====") && !is_message("==x== y") && !is_message(" L 10,4"));
    }
}
