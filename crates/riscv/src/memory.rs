//! A guest's virtual memory: regions with protection, frames that are allocated when touched, and
//! a direct-mapped translation cache in front.

use std::collections::{BTreeMap, HashMap};

/// Bytes of a guest page.
pub const PAGE_BYTES: u64 = 4096;
/// First address that Linux does not give to user mode under Sv39.
pub const USER_END: u64 = 1 << 38;
/// Entries of the translation cache: reaches 4 MiB; half as many cost hits in programs of that
/// size, twice as many leave the host's first-level cache.
const TRANSLATIONS: usize = 1024;

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// A load.
    Load,
    /// A store, or an atomic operation.
    Store,
    /// An instruction fetch.
    Fetch,
}

/// An access that the guest's memory refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?} at {address:#x}: {}", if *.exhausted { "the guest's memory limit is reached" }
    else { "not mapped for this" })]
pub struct MemoryFault {
    /// First byte that cannot be reached.
    pub address: u64,
    /// What was tried.
    pub kind: AccessKind,
    /// The page is mapped, but the limit of frames is reached.
    pub exhausted: bool,
}

/// `PROT_READ`.
pub const READ: u8 = 1;
/// `PROT_WRITE`.
pub const WRITE: u8 = 2;
/// `PROT_EXEC`.
pub const EXECUTE: u8 = 4;

/// Memory as a hart sees it.
pub trait HartMemory {
    /// Loads `N` bytes.
    ///
    /// # Errors
    /// [`MemoryFault`].
    fn load<const N: usize>(&mut self, address: u64) -> Result<[u8; N], MemoryFault>;
    /// Stores `N` bytes, or nothing.
    ///
    /// # Errors
    /// [`MemoryFault`].
    fn store<const N: usize>(&mut self, address: u64, bytes: [u8; N]) -> Result<(), MemoryFault>;
    /// The instruction at `pc`; of a compressed one, two bytes.
    ///
    /// # Errors
    /// [`MemoryFault`].
    fn fetch(&mut self, pc: u64) -> Result<u32, MemoryFault>;
    /// A number that tells the code at a program counter from all other code. It stands for the
    /// rest of its page as well, and is kept until the code is said to have changed.
    ///
    /// # Errors
    /// [`MemoryFault`].
    fn code_address(&mut self, pc: u64) -> Result<u64, MemoryFault>;
}

impl HartMemory for GuestMemory {
    #[inline(always)]
    fn load<const N: usize>(&mut self, address: u64) -> Result<[u8; N], MemoryFault> {
        Self::load(self, address)
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, address: u64, bytes: [u8; N]) -> Result<(), MemoryFault> {
        Self::store(self, address, bytes)
    }

    fn fetch(&mut self, pc: u64) -> Result<u32, MemoryFault> {
        Self::fetch(self, pc)
    }

    /// The program counter: code that changes is said to have changed.
    #[inline(always)]
    fn code_address(&mut self, pc: u64) -> Result<u64, MemoryFault> {
        Ok(pc)
    }
}

#[derive(Debug, Clone, Copy)]
struct Region {
    end: u64,
    protection: u8,
}

/// A page and the frame behind it.
#[derive(Debug, Clone, Copy)]
struct Translation {
    page: u64,
    frame: usize,
}

/// The translations for one kind of access, by the low bits of the page.
type TranslationTable = Box<[Translation; TRANSLATIONS]>;

/// No address has this page.
const NO_PAGE: u64 = u64::MAX;
const EMPTY: Translation = Translation { page: NO_PAGE, frame: 0 };

/// The memory of one guest process.
#[derive(Debug)]
pub struct GuestMemory {
    regions: BTreeMap<u64, Region>,
    frames: Vec<[u8; PAGE_BYTES as usize]>,
    free: Vec<u32>,
    pages: HashMap<u64, u32>,
    readable: TranslationTable,
    writable: TranslationTable,
    most_frames: usize,
    code_changed: bool,
}

impl GuestMemory {
    /// Empty memory that may have at most so many bytes touched.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            regions: BTreeMap::new(),
            frames: Vec::new(),
            free: Vec::new(),
            pages: HashMap::new(),
            readable: Box::new([EMPTY; TRANSLATIONS]),
            writable: Box::new([EMPTY; TRANSLATIONS]),
            most_frames: usize::try_from(limit_bytes / PAGE_BYTES).unwrap_or(usize::MAX),
            code_changed: false,
        }
    }

    /// Cuts the region that `at` lies within in two.
    fn split(&mut self, at: u64) {
        if let Some((_, region)) = self.regions.range_mut(..at).next_back() {
            if region.end > at {
                let rest = *region;
                region.end = at;
                self.regions.insert(at, rest);
            }
        }
    }

    /// Forgets what the pages hold and that they are mapped. Addresses are whole pages.
    pub fn unmap(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        let gone: Vec<u64> = self.regions.range(start..end).map(|(&at, _)| at).collect();
        for at in gone {
            let region = self.regions.remove(&at);
            self.code_changed |= region.is_some_and(|region| region.protection & EXECUTE != 0);
        }
        self.discard(start, end);
    }

    /// Whether executable pages were mapped, unmapped or protected since this was last asked.
    pub fn take_code_change(&mut self) -> bool {
        std::mem::take(&mut self.code_changed)
    }

    /// Regions that differ from their neighbours.
    #[must_use]
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Protection of the page at an address, where one is mapped.
    #[must_use]
    pub fn protection_at(&self, address: u64) -> Option<u8> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then_some(region.protection)
    }

    /// Whether all pages of the range are mapped.
    #[must_use]
    pub fn is_mapped(&self, start: u64, end: u64) -> bool {
        let mut reached = start;
        while reached < end {
            match self.regions.range(..=reached).next_back() {
                Some((_, region)) if region.end > reached => reached = region.end,
                _ => return false,
            }
        }
        true
    }

    /// Moves pages with what they hold to a free range.
    pub fn relocate(&mut self, start: u64, end: u64, to: u64) {
        self.split(start);
        self.split(end);
        let moved: Vec<(u64, Region)> =
            self.regions.range(start..end).map(|(&at, &region)| (at, region)).collect();
        for (at, region) in moved {
            self.regions.remove(&at);
            self.code_changed |= region.protection & EXECUTE != 0;
            let end = region.end - start + to;
            self.regions.insert(at - start + to, Region { end, ..region });
        }
        let touched = self.touched(start, end);
        let frames: Vec<u32> = touched.iter().filter_map(|page| self.pages.remove(page)).collect();
        for (page, frame) in touched.into_iter().zip(frames) {
            self.pages.insert(page - start / PAGE_BYTES + to / PAGE_BYTES, frame);
        }
        self.forget_translations();
    }

    fn forget_translations(&mut self) {
        self.readable.fill(EMPTY);
        self.writable.fill(EMPTY);
    }

    /// Joins regions of equal protection at an address.
    fn join(&mut self, at: u64) {
        let Some(&next) = self.regions.get(&at) else { return };
        if let Some((_, before)) = self.regions.range_mut(..at).next_back() {
            if before.end == at && before.protection == next.protection {
                before.end = next.end;
                self.regions.remove(&at);
            }
        }
    }

    /// Pages of a range that have a frame.
    fn touched(&self, start: u64, end: u64) -> Vec<u64> {
        let pages = start / PAGE_BYTES..end / PAGE_BYTES;
        if pages.end - pages.start < self.pages.len() as u64 {
            pages.filter(|page| self.pages.contains_key(page)).collect()
        } else {
            self.pages.keys().copied().filter(|page| pages.contains(page)).collect()
        }
    }

    /// Makes touched pages of a range read as zeros again, as `madvise` does with
    /// `MADV_DONTNEED`.
    pub fn discard(&mut self, start: u64, end: u64) {
        let touched = self.touched(start, end);
        self.free.extend(touched.iter().filter_map(|page| self.pages.remove(page)));
        self.forget_translations();
    }

    /// Maps fresh zeros in place of what was there. Addresses are whole pages.
    pub fn map(&mut self, start: u64, end: u64, protection: u8) {
        self.unmap(start, end);
        self.regions.insert(start, Region { end, protection });
        self.code_changed |= protection & EXECUTE != 0;
        self.join(end);
        self.join(start);
    }

    /// Changes the protection of mapped pages; `false` if a page of the range is not mapped.
    pub fn protect(&mut self, start: u64, end: u64, protection: u8) -> bool {
        self.split(start);
        self.split(end);
        let mut reached = start;
        for (&at, region) in self.regions.range_mut(start..end) {
            if at != reached {
                break;
            }
            self.code_changed |= (region.protection | protection) & EXECUTE != 0;
            region.protection = protection;
            reached = region.end;
        }
        let borders: Vec<u64> = self.regions.range(start..=end).map(|(&at, _)| at).collect();
        for at in borders.into_iter().rev() {
            self.join(at);
        }
        self.forget_translations();
        reached == end
    }

    /// Whether no page of the range is mapped.
    #[must_use]
    pub fn is_free(&self, start: u64, end: u64) -> bool {
        self.regions.range(..end).next_back().is_none_or(|(_, region)| region.end <= start)
    }

    /// The highest free range of so many bytes that ends at or below `below`.
    #[must_use]
    pub fn find_free(&self, bytes: u64, below: u64) -> Option<u64> {
        let mut top = below;
        for (&at, region) in self.regions.range(..below).rev() {
            if top.saturating_sub(region.end) >= bytes {
                break;
            }
            top = at;
        }
        let start = top.checked_sub(bytes)?;
        (start >= PAGE_BYTES && self.is_free(start, top)).then_some(start)
    }

    /// Frame of the page at an address, allocated if need be; fills the translation cache.
    #[cold]
    fn translate(&mut self, address: u64, kind: AccessKind) -> Result<u32, MemoryFault> {
        let fault = MemoryFault { address, kind, exhausted: false };
        let (_, region) = self.regions.range(..=address).next_back().ok_or(fault)?;
        let needed = match kind {
            AccessKind::Load => READ,
            AccessKind::Store => WRITE,
            AccessKind::Fetch => EXECUTE,
        };
        let region = *region;
        if address >= region.end || region.protection & needed == 0 {
            return Err(fault);
        }
        let page = address / PAGE_BYTES;
        let frame = match self.pages.get(&page) {
            Some(&frame) => frame,
            None => self.allocate(page).ok_or(MemoryFault { exhausted: true, ..fault })?,
        };
        let entry = Translation { page, frame: frame as usize };
        match kind {
            AccessKind::Load => self.readable[page as usize % TRANSLATIONS] = entry,
            AccessKind::Store => self.writable[page as usize % TRANSLATIONS] = entry,
            AccessKind::Fetch => {}
        }
        Ok(frame)
    }

    fn allocate(&mut self, page: u64) -> Option<u32> {
        let frame = match self.free.pop() {
            Some(frame) => {
                self.frames[frame as usize].fill(0);
                frame
            }
            None if self.frames.len() < self.most_frames => {
                self.frames.push([0; PAGE_BYTES as usize]);
                u32::try_from(self.frames.len() - 1).ok()?
            }
            None => return None,
        };
        self.pages.insert(page, frame);
        Some(frame)
    }

    /// Loads `N` bytes.
    ///
    /// # Errors
    /// [`MemoryFault`] where a byte is not mapped for reading.
    #[inline(always)]
    pub fn load<const N: usize>(&mut self, address: u64) -> Result<[u8; N], MemoryFault> {
        let (page, offset) = (address / PAGE_BYTES, (address % PAGE_BYTES) as usize);
        let entry = self.readable[page as usize % TRANSLATIONS];
        if entry.page == page {
            let frame = self.frames.get(entry.frame);
            if let Some(Ok(bytes)) =
                frame.and_then(|frame| frame.get(offset..offset + N)).map(<[u8; N]>::try_from)
            {
                return Ok(bytes);
            }
        }
        self.load_slowly(address)
    }

    /// Stores `N` bytes.
    ///
    /// # Errors
    /// [`MemoryFault`] where a byte is not mapped for writing; nothing is written then.
    #[inline(always)]
    pub fn store<const N: usize>(
        &mut self,
        address: u64,
        bytes: [u8; N],
    ) -> Result<(), MemoryFault> {
        let (page, offset) = (address / PAGE_BYTES, (address % PAGE_BYTES) as usize);
        let entry = self.writable[page as usize % TRANSLATIONS];
        if entry.page == page {
            let frame = self.frames.get_mut(entry.frame);
            if let Some(to) = frame.and_then(|frame| frame.get_mut(offset..offset + N)) {
                to.copy_from_slice(&bytes);
                return Ok(());
            }
        }
        self.store_slowly(address, bytes)
    }

    #[cold]
    #[inline(never)]
    fn load_slowly<const N: usize>(&mut self, address: u64) -> Result<[u8; N], MemoryFault> {
        let mut bytes = [0; N];
        self.copy_out(address, &mut bytes, AccessKind::Load)?;
        Ok(bytes)
    }

    #[cold]
    #[inline(never)]
    fn store_slowly<const N: usize>(
        &mut self,
        address: u64,
        bytes: [u8; N],
    ) -> Result<(), MemoryFault> {
        self.write(address, &bytes)
    }

    /// Fills `bytes` from guest memory.
    fn copy_out(
        &mut self,
        address: u64,
        bytes: &mut [u8],
        kind: AccessKind,
    ) -> Result<(), MemoryFault> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address.wrapping_add(done as u64);
            let frame = self.translate(at, kind)?;
            let offset = (at % PAGE_BYTES) as usize;
            let count = (bytes.len() - done).min(PAGE_BYTES as usize - offset);
            bytes[done..done + count]
                .copy_from_slice(&self.frames[frame as usize][offset..offset + count]);
            done += count;
        }
        Ok(())
    }

    /// Fills `bytes` from readable memory.
    ///
    /// # Errors
    /// [`MemoryFault`] at the first page that cannot be read.
    pub fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryFault> {
        self.copy_out(address, bytes, AccessKind::Load)
    }

    /// Writes `bytes` to writable memory, or nothing.
    ///
    /// # Errors
    /// [`MemoryFault`] at the first page that cannot be written.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let mut at = address;
        let end = address.wrapping_add(bytes.len() as u64);
        while at < end {
            self.translate(at, AccessKind::Store)?;
            at = (at / PAGE_BYTES + 1) * PAGE_BYTES;
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = address.wrapping_add(done as u64);
            let frame = self.translate(at, AccessKind::Store)?;
            let offset = (at % PAGE_BYTES) as usize;
            let count = (bytes.len() - done).min(PAGE_BYTES as usize - offset);
            self.frames[frame as usize][offset..offset + count]
                .copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        Ok(())
    }

    /// The instruction at `pc`; of the last halfword of a region, two bytes.
    ///
    /// # Errors
    /// [`MemoryFault`] where it is not mapped for execution.
    pub fn fetch(&mut self, pc: u64) -> Result<u32, MemoryFault> {
        let mut low = [0; 2];
        self.copy_out(pc, &mut low, AccessKind::Fetch)?;
        let low = u32::from(u16::from_le_bytes(low));
        if low & 3 != 3 {
            return Ok(low);
        }
        let mut high = [0; 2];
        self.copy_out(pc.wrapping_add(2), &mut high, AccessKind::Fetch)?;
        Ok(low | u32::from(u16::from_le_bytes(high)) << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_protected_split_and_reused() {
        let mut memory = GuestMemory::new(2 * PAGE_BYTES);
        memory.map(0x1000, 0x4000, READ | WRITE);
        memory.store(0x1ffc, [1; 8]).unwrap();
        assert_eq!(memory.load::<8>(0x1ffc), Ok([1; 8]));
        let refused = memory.store(0x3000, [1]).unwrap_err();
        assert!(refused.exhausted, "{refused}");
        assert!(memory.protect(0x2000, 0x3000, READ));
        // Nothing of a store that a page refuses is written.
        assert_eq!(memory.store(0x1ffc, [2; 8]).unwrap_err().address, 0x2000);
        assert_eq!(memory.load::<8>(0x1ffc), Ok([1; 8]));
        memory.unmap(0x2000, 0x3000);
        assert!(memory.load::<1>(0x2000).is_err() && memory.fetch(0x1000).is_err());
        assert_eq!(memory.load::<4>(0x3000), Ok([0; 4]));
        assert!(memory.is_free(0x2000, 0x3000) && !memory.is_free(0x2fff, 0x3001));
        assert_eq!(memory.find_free(0x1000, 0x4000), Some(0x2000));
        assert_eq!(memory.find_free(0x2000, 0x4000), None);
        assert!(!memory.protect(0x1000, 0x4000, READ));
    }
}
