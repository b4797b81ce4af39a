//! A small cache of virtual to physical pages, one a vCPU: asking QEMU for each access would cost
//! more than the rest.
//!
//! It may keep what a processor may keep: it is emptied at each write to a control register and
//! each `invlpg`, which are the ways in which an x86 kernel drops translations.

const ENTRIES: usize = 1024;
const PAGE: u64 = 4096;

/// The cache; direct-mapped by virtual page number.
pub struct Translations {
    entries: Box<[(u64, u64); ENTRIES]>,
}

impl Translations {
    /// An empty one.
    pub fn new() -> Self {
        Self { entries: Box::new([(u64::MAX, 0); ENTRIES]) }
    }

    /// Physical address of a virtual one, if known.
    #[inline(always)]
    pub fn get(&self, address: u64) -> Option<u64> {
        let page = address / PAGE;
        let (tag, physical) = self.entries[page as usize % ENTRIES];
        (tag == page).then_some(physical | (address % PAGE))
    }

    /// Remember one.
    pub fn put(&mut self, address: u64, physical: u64) {
        let page = address / PAGE;
        self.entries[page as usize % ENTRIES] = (page, physical / PAGE * PAGE);
    }

    /// Forget all.
    pub fn forget(&mut self) {
        self.entries.fill((u64::MAX, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_pages_until_they_are_forgotten() {
        let mut t = Translations::new();
        assert_eq!(t.get(0x1234), None);
        t.put(0x1234, 0x9000_0234);
        assert_eq!(t.get(0x1fff), Some(0x9000_0fff));
        assert_eq!(t.get(0x1000 + (ENTRIES as u64) * PAGE), None);
        t.forget();
        assert_eq!(t.get(0x1234), None);
    }
}
