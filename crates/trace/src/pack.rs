//! Numbers of varying length, and sections of a payload.

use crate::error::TraceError;
use crate::frame::MAX_PAYLOAD;
use zstd::zstd_safe::CParameter;

/// zstd's level: the columns are simple enough that higher ones gain little.
const LEVEL: i32 = 1;
/// The shortest repetition that is looked for, the longest that can be asked for: shorter ones in
/// bytes of numbers are chance, and not to look for them is faster and smaller (docs/adr/0250).
const SHORTEST: u32 = 7;
/// Sections shorter than this are stored as they are.
const WORTHWHILE: usize = 48;
const RAW: u8 = 0;
const ZSTD: u8 = 1;

/// Appends a number, seven bits a byte, low ones first.
pub fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A signed number as an unsigned one, small where it is near zero.
pub fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// Its inverse.
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Takes numbers and strings off bytes that are not trusted.
#[derive(Debug)]
pub struct Taker<'a>(pub &'a [u8]);

impl<'a> Taker<'a> {
    /// The next number.
    pub fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// The next number, if it fits 32 bits.
    pub fn small(&mut self) -> Option<u32> {
        self.number().and_then(|n| u32::try_from(n).ok())
    }

    /// The next bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Whether all is taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Builds payloads.
pub struct Packer {
    compressor: zstd::bulk::Compressor<'static>,
    payload: Vec<u8>,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").field("bytes", &self.payload.len()).finish_non_exhaustive()
    }
}

impl Packer {
    pub fn new() -> Result<Self, TraceError> {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).map_err(cannot_compress)?;
        compressor.set_parameter(CParameter::MinMatch(SHORTEST)).map_err(cannot_compress)?;
        Ok(Self { compressor, payload: Vec::new() })
    }

    /// Begins a payload.
    pub fn begin(&mut self) {
        self.payload.clear();
        self.payload.push(0);
    }

    /// Adds a section unless it is empty.
    pub fn section(&mut self, id: u8, raw: &[u8]) -> Result<(), TraceError> {
        if raw.is_empty() {
            return Ok(());
        }
        if raw.len() > MAX_PAYLOAD as usize {
            return Err(TraceError::Unfit("a section of more than 32 MiB"));
        }
        self.payload[0] += 1;
        let head = self.payload.len();
        self.payload.extend_from_slice(&[id, RAW]);
        self.payload.extend_from_slice(&(raw.len() as u32).to_le_bytes());
        self.payload.extend_from_slice(&(raw.len() as u32).to_le_bytes());
        let start = self.payload.len();
        if raw.len() >= WORTHWHILE {
            self.payload.resize(start + zstd::zstd_safe::compress_bound(raw.len()), 0);
            let stored = self
                .compressor
                .compress_to_buffer(raw, &mut self.payload[start..])
                .map_err(cannot_compress)?;
            self.payload.truncate(start + stored);
            if stored < raw.len() {
                self.payload[head + 1] = ZSTD;
                self.payload[head + 6..start].copy_from_slice(&(stored as u32).to_le_bytes());
                return Ok(());
            }
            self.payload.truncate(start);
        }
        self.payload.extend_from_slice(raw);
        Ok(())
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

fn cannot_compress(source: std::io::Error) -> TraceError {
    TraceError::Write { offset: 0, source }
}

/// Takes payloads apart; buffers are kept from block to block.
pub struct Unpacker {
    decompressor: zstd::bulk::Decompressor<'static>,
    sections: Vec<(u8, Vec<u8>)>,
    used: usize,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").field("sections", &self.used).finish_non_exhaustive()
    }
}

impl Unpacker {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { decompressor: zstd::bulk::Decompressor::new()?, sections: Vec::new(), used: 0 })
    }

    /// Decodes all sections. Says what is wrong where the payload contradicts itself.
    pub fn unpack(&mut self, payload: &[u8]) -> Result<(), &'static str> {
        const SHORT: &str = "a section is cut off";
        self.used = 0;
        let mut rest = Taker(payload);
        let count = rest.bytes(1).ok_or(SHORT)?[0];
        let mut total = 0usize;
        for _ in 0..count {
            let head = rest.bytes(10).ok_or(SHORT)?;
            let raw_bytes = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
            let stored_bytes = u32::from_le_bytes([head[6], head[7], head[8], head[9]]) as usize;
            let stored = rest.bytes(stored_bytes).ok_or(SHORT)?;
            total += raw_bytes;
            if total > 2 * MAX_PAYLOAD as usize {
                return Err("it claims to unpack to more than a block holds");
            }
            if self.used == self.sections.len() {
                self.sections.push((0, Vec::new()));
            }
            let (id, raw) = &mut self.sections[self.used];
            *id = head[0];
            match head[1] {
                RAW => {
                    raw.clear();
                    raw.extend_from_slice(stored);
                }
                ZSTD => {
                    // Only what the last use left is written over, so this does not clear the
                    // buffer each time.
                    raw.resize(raw_bytes, 0);
                    let got = self.decompressor.decompress_to_buffer(stored, raw.as_mut_slice());
                    raw.truncate(got.map_err(|_| "a section does not decompress")?);
                }
                _ => return Err("a section in a coding that is not known"),
            }
            if raw.len() != raw_bytes {
                return Err("a section is not as long as it says");
            }
            self.used += 1;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err("bytes are left over after the last section")
        }
    }

    /// A section's bytes; none where it is absent.
    pub fn get(&self, id: u8) -> &[u8] {
        self.sections[..self.used].iter().find(|(have, _)| *have == id).map_or(&[], |(_, raw)| raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let values = [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let mut out = Vec::new();
        for v in values {
            put_number(&mut out, v);
        }
        let mut taker = Taker(&out);
        for v in values {
            assert_eq!(taker.number(), Some(v));
        }
        assert!(taker.is_empty());
        assert_eq!(taker.number(), None);
        for v in [0, 1, -1, 63, -64, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(v)), v);
        }
    }

    #[test]
    fn a_number_that_is_too_long_is_refused() {
        assert_eq!(Taker(&[0xff; 11]).number(), None);
        let mut two_to_64 = [0x80; 10];
        two_to_64[9] = 2;
        assert_eq!(Taker(&two_to_64).number(), None);
    }

    #[test]
    fn sections_come_back_packed_or_not() {
        let mut packer = Packer::new().unwrap();
        packer.begin();
        let noise: Vec<u8> =
            (0..200u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        packer.section(1, &[7; 1000]).unwrap();
        packer.section(2, &[1, 2, 3]).unwrap();
        packer.section(3, &[]).unwrap();
        packer.section(4, &noise).unwrap();
        let mut unpacker = Unpacker::new().unwrap();
        unpacker.unpack(packer.payload()).unwrap();
        assert_eq!(unpacker.get(1), &[7; 1000]);
        assert_eq!(unpacker.get(2), &[1, 2, 3]);
        assert_eq!(unpacker.get(3), &[] as &[u8]);
        assert_eq!(unpacker.get(4), &noise);
        for end in 0..packer.payload().len() {
            assert!(unpacker.unpack(&packer.payload()[..end]).is_err(), "cut at {end}");
        }
    }
}
