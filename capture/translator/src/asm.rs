//! Machine code, written front to back. Only what recording needs; the program's own instructions
//! are copied, or changed and encoded by `iced_x86`.

use crate::context::{RING, SCRATCH};
use alloc::vec::Vec;

/// An address of the form base + index * scale + displacement.
#[derive(Debug, Clone, Copy, Default)]
pub struct Address {
    pub base: Option<u8>,
    pub index: Option<(u8, u8)>,
    pub displacement: i64,
    /// Computed modulo 2^32.
    pub narrow: bool,
}

/// Code that will lie at `base`.
pub struct Code {
    pub bytes: Vec<u8>,
    pub base: u64,
}

impl Code {
    pub fn here(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn put32(&mut self, value: i32) {
        self.put(&value.to_le_bytes());
    }

    /// An instruction with a register and memory at GS.
    fn gs(&mut self, opcode: u8, register: u8, offset: i32) {
        self.put(&[0x65, 0x48 | (register >> 3) << 2, opcode, (register & 7) << 3 | 4, 0x25]);
        self.put32(offset);
    }

    pub fn load_gs(&mut self, register: u8, offset: i32) {
        self.gs(0x8b, register, offset);
    }

    pub fn store_gs(&mut self, offset: i32, register: u8) {
        self.gs(0x89, register, offset);
    }

    /// cmp register, gs:[offset]
    pub fn compare_gs(&mut self, register: u8, offset: i32) {
        self.gs(0x3b, register, offset);
    }

    /// mov register, gs:[offset + index * 8]
    pub fn load_gs_indexed(&mut self, register: u8, index: u8, offset: i32) {
        let rex = 0x48 | (register >> 3) << 2 | (index >> 3) << 1;
        self.put(&[0x65, rex, 0x8b, (register & 7) << 3 | 4, 0xc5 | (index & 7) << 3]);
        self.put32(offset);
    }

    /// The operands of an instruction on memory at the ring's register.
    fn ring_operand(&mut self, field: u8, displacement: i32) {
        if let Ok(short) = i8::try_from(displacement) {
            self.put(&[0x40 | (field & 7) << 3 | (RING & 7), short as u8]);
        } else {
            self.put(&[0x80 | (field & 7) << 3 | (RING & 7)]);
            self.put32(displacement);
        }
    }

    /// mov [ring + displacement], register
    pub fn store_word(&mut self, displacement: i32, register: u8) {
        self.put(&[0x49 | (register >> 3) << 2, 0x89]);
        self.ring_operand(register, displacement);
    }

    /// mov register, [ring + displacement]
    pub fn load_word(&mut self, register: u8, displacement: i32) {
        self.put(&[0x49 | (register >> 3) << 2, 0x8b]);
        self.ring_operand(register, displacement);
    }

    /// Loads `1 << log2` bytes, zero-extended, from where the scratch register points into it.
    pub fn load_value(&mut self, log2: u8) {
        const { assert!(SCRATCH == 14) };
        match log2 {
            0 => self.put(&[0x45, 0x0f, 0xb6, 0x36]),
            1 => self.put(&[0x45, 0x0f, 0xb7, 0x36]),
            2 => self.put(&[0x45, 0x8b, 0x36]),
            _ => self.put(&[0x4d, 0x8b, 0x36]),
        }
    }

    /// A constant into a word of the ring; two stores, which nobody loads soon.
    pub fn store_constant(&mut self, displacement: i32, value: u64) {
        if i64::from(value as i32) as u64 == value {
            self.put(&[0x49, 0xc7]);
            self.ring_operand(0, displacement);
            self.put32(value as i32);
            return;
        }
        for (at, part) in [(displacement, value as u32), (displacement + 4, (value >> 32) as u32)] {
            self.put(&[0x41, 0xc7]);
            self.ring_operand(0, at);
            self.put(&part.to_le_bytes());
        }
    }

    /// The upper 16 bits of a word of the ring.
    pub fn store_tag(&mut self, displacement: i32, tag: u16) {
        self.put(&[0x66, 0x41, 0xc7]);
        self.ring_operand(0, displacement + 6);
        self.put(&tag.to_le_bytes());
    }

    pub fn constant(&mut self, register: u8, value: u64) {
        let b = register >> 3;
        if let Ok(short) = u32::try_from(value) {
            if b == 1 {
                self.put(&[0x41]);
            }
            self.put(&[0xb8 | register & 7]);
            self.put(&short.to_le_bytes());
        } else {
            self.put(&[0x48 | b, 0xb8 | register & 7]);
            self.put(&value.to_le_bytes());
        }
    }

    pub fn copy(&mut self, to: u8, from: u8) {
        self.put(&[0x48 | (from >> 3) << 2 | to >> 3, 0x89, 0xc0 | (from & 7) << 3 | to & 7]);
    }

    pub fn lea(&mut self, to: u8, address: Address) {
        let Address { base, index, displacement, narrow } = address;
        if narrow {
            self.put(&[0x67]);
        }
        let (x, scale) = index.map_or((4, 1), |(r, s)| (r, s));
        let b = base.unwrap_or(5);
        self.put(&[0x48 | (to >> 3) << 2 | (x >> 3) << 1 | b >> 3, 0x8d]);
        let displacement = displacement as i32;
        let short = i8::try_from(displacement).ok();
        // Without a base, and with one that is rbp or r13, there is always a displacement.
        let mode = match (base, short) {
            (None, _) => 0,
            (Some(b), Some(0)) if b & 7 != 5 => 0,
            (Some(_), Some(_)) => 1,
            (Some(_), None) => 2,
        };
        let field = (to & 7) << 3;
        if index.is_none() && base.is_some_and(|b| b & 7 != 4) {
            self.put(&[mode << 6 | field | b & 7]);
        } else {
            self.put(&[
                mode << 6 | field | 4,
                (scale.trailing_zeros() as u8) << 6 | (x & 7) << 3 | b & 7,
            ]);
        }
        match (mode, base) {
            (_, None) | (2, _) => self.put32(displacement),
            (1, _) => self.put(&[displacement as u8]),
            _ => {}
        }
    }

    /// lea scratch, [rip + distance to `address`]
    pub fn point_at(&mut self, address: u64) {
        let distance = address.wrapping_sub(self.here() + 7) as i32;
        self.put(&[0x48 | (SCRATCH >> 3) << 2, 0x8d, (SCRATCH & 7) << 3 | 5]);
        self.put32(distance);
    }

    /// jmp, or with a condition's opcode jcc; where the distance stands.
    pub fn jump(&mut self, condition: Option<u8>, to: u64) -> u64 {
        match condition {
            Some(c) => self.put(&[0x0f, 0x80 | c & 15]),
            None => self.put(&[0xe9]),
        }
        let site = self.here();
        self.put32(to.wrapping_sub(site + 4) as i32);
        site
    }

    /// [`Code::jump`] whose distance may be written anew while others execute it: it lies within a
    /// line.
    pub fn jump_to_patch(&mut self, condition: Option<u8>, to: u64) -> u64 {
        let opcode = if condition.is_some() { 2 } else { 1 };
        while (self.here() + opcode) % 64 > 60 {
            self.put(&[0x90]);
        }
        self.jump(condition, to)
    }

    /// Fills up to a multiple of `bytes`, with what is never executed.
    pub fn align(&mut self, bytes: u64) {
        while self.here() % bytes != 0 {
            self.put(&[0xcc]);
        }
    }

    /// Writes the short distance at `site`, up to here.
    pub fn land(&mut self, site: usize) {
        self.bytes[site] = (self.bytes.len() - site - 1) as u8;
    }

    /// A short jump of this opcode whose distance is not known yet; where it stands.
    pub fn short(&mut self, opcode: &[u8]) -> usize {
        self.put(opcode);
        self.put(&[0]);
        self.bytes.len() - 1
    }
}
