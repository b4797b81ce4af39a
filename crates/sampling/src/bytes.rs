//! Takes little-endian numbers off bytes that are not trusted.

/// What is left of a record.
#[derive(Debug, Clone, Copy)]
pub struct ByteCursor<'a>(pub &'a [u8]);

impl<'a> ByteCursor<'a> {
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u64(&mut self) -> Option<u64> {
        let (taken, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*taken))
    }

    pub fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*taken))
    }

    pub fn i32(&mut self) -> Option<i32> {
        self.u32().map(|word| word as i32)
    }

    /// `count` words of eight bytes.
    pub fn words(&mut self, count: u64) -> Option<&'a [u8]> {
        self.take(usize::try_from(count.checked_mul(8)?).ok()?)
    }

    /// A string that ends with a zero byte or with the bytes.
    pub fn string(&self) -> String {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}
