//! Which extent has a page: four bytes a page (a hash map takes five to ten times that, which is a
//! percent of the data).

/// Pages recorded together; they are recorded once one of them is.
const TOGETHER: usize = 1024;
/// Bits for a page's number in its extent.
const INDEX_BITS: u32 = 2;
/// As many extents can be distinguished: 4 TiB of pages and more.
pub(super) const MAX_EXTENTS: usize = (1 << (32 - INDEX_BITS)) - 1;

/// Extents by page.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Extent and index, plus one; 0: none.
    parts: Vec<Option<Box<[u32; TOGETHER]>>>,
    count: usize,
    /// Parts there are.
    kept: usize,
}

impl Pages {
    fn word(&self, page: u64) -> u32 {
        let part = self.parts.get(page as usize / TOGETHER);
        part.and_then(Option::as_ref).map_or(0, |p| p[page as usize % TOGETHER])
    }

    /// The extent of a page and the page's number in it.
    pub fn get(&self, page: u64) -> Option<(u32, u8)> {
        let word = self.word(page).checked_sub(1)?;
        Some((word >> INDEX_BITS, (word & ((1 << INDEX_BITS) - 1)) as u8))
    }

    /// Records a page; below [`MAX_EXTENTS`] extents, of which each has at most four pages.
    pub fn set(&mut self, page: u64, extent: u32, index: u8) {
        debug_assert!((extent as usize) < MAX_EXTENTS && index < 1 << INDEX_BITS);
        let (part, at) = (page as usize / TOGETHER, page as usize % TOGETHER);
        if part >= self.parts.len() {
            self.parts.resize_with(part + 1, || None);
        }
        let kept = &mut self.kept;
        let found = self.parts[part].get_or_insert_with(|| {
            *kept += 1;
            Box::new([0; TOGETHER])
        });
        let word = &mut found[at];
        self.count += usize::from(*word == 0);
        *word = (extent << INDEX_BITS | u32::from(index)) + 1;
    }

    /// Forgets a page, and says where it was.
    pub fn take(&mut self, page: u64) -> Option<(u32, u8)> {
        let was = self.get(page)?;
        if let Some(part) = self.parts[page as usize / TOGETHER].as_mut() {
            part[page as usize % TOGETHER] = 0;
        }
        self.count -= 1;
        Some(was)
    }

    /// Pages recorded.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Memory for this table.
    pub fn bytes(&self) -> usize {
        self.kept * std::mem::size_of::<[u32; TOGETHER]>()
            + self.parts.capacity() * std::mem::size_of::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_where_they_were_put() {
        let mut pages = Pages::default();
        for page in (0..10_000_u64).step_by(3) {
            pages.set(page, (page * 7 % 100_003) as u32, (page % 4) as u8);
        }
        pages.set(9, 5, 2);
        assert_eq!(
            (pages.len(), pages.get(9), pages.get(1), pages.get(1 << 40)),
            (3334, Some((5, 2)), None, None)
        );
        assert_eq!((pages.take(9), pages.take(9), pages.len()), (Some((5, 2)), None, 3333));
        assert_eq!(pages.get(9_999), Some((69_993, 3)));
        assert!(pages.bytes() < 10_000 * 5, "{}", pages.bytes());
    }
}
