//! valgrind's lackey: lines `I  ADDRESS,SIZE` for instructions, ` L`, ` S` and ` M` (a load and a
//! store) for data.

use super::{hex, Importer, Line};
use crate::error::TraceError;
use crate::event::{Access, Header};
use crate::write::TraceWriter;
use std::io::Write;

pub fn header() -> Header {
    Header {
        source: "lackey".into(),
        notes: vec!["threads are not told apart".into()],
        pcs: true,
        ..Header::default()
    }
}

/// What the lines before said.
#[derive(Debug, Default)]
pub struct Lackey {
    pc: u64,
    instructions: u64,
}

impl<W: Write> Importer<W> for Lackey {
    fn line(&mut self, writer: &mut TraceWriter<W>, line: &str) -> Result<Line, TraceError> {
        let Some((what, address, size)) = parse(line) else { return Ok(Line::Unknown) };
        if what == 'I' {
            self.pc = address;
            self.instructions += 1;
            return Ok(Line::Known(0));
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
        Ok(Line::Known(count))
    }
}

fn parse(line: &str) -> Option<(char, u64, u32)> {
    let (what, rest) = match line.as_bytes() {
        [b'I', b' ', ..] => ('I', &line[1..]),
        [b' ', what @ (b'L' | b'S' | b'M'), b' ', ..] => (char::from(*what), &line[2..]),
        _ => return None,
    };
    let (address, size) = rest.trim().split_once(',')?;
    Some((what, hex(address)?, size.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        assert_eq!(parse("I  04016b80,3"), Some(('I', 0x0401_6b80, 3)));
        assert_eq!(parse(" S 1ffefffe78,8"), Some(('S', 0x1f_feff_fe78, 8)));
        assert_eq!(parse(" M 0421c7cc,4"), Some(('M', 0x0421_c7cc, 4)));
        for other in
            ["==12== Lackey", " L", " L zz,4", " L 10,x", "", "I", " X 10,4", " L 10,99999999999"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
