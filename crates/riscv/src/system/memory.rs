//! Physical memory, devices behind it, and Sv39 translation.

use super::csr::{PrivilegeMode, PrivilegedState};
use super::devices::MachineDevices;
use super::virtio::PhysicalMemory;
use crate::memory::{AccessKind, HartMemory, MemoryFault, PAGE_BYTES};

/// Where memory begins, as on QEMU's `virt` machine, whose map this is.
pub const RAM_START: u64 = 0x8000_0000;
/// Entries of a translation table: reaches 1 MiB; twice as many cost more to clear at each switch
/// of address spaces than they save.
const TRANSLATIONS: usize = 256;
/// No address has this page.
const NO_PAGE: u64 = u64::MAX;
/// Contexts of translation: user, supervisor, supervisor that may access user pages, machine.
const CONTEXTS: usize = 4;
/// Bits of a page-table entry.
const VALID: u64 = 1;
const PAGE_READ: u64 = 2;
const PAGE_WRITE: u64 = 4;
const PAGE_EXECUTE: u64 = 8;
const PAGE_USER: u64 = 16;
const ACCESSED: u64 = 64;
const DIRTY: u64 = 128;
const FRAME_NUMBER: u64 = (1 << 44) - 1;

type Frame = [u8; PAGE_BYTES as usize];

/// A page and the frame of memory behind it.
#[derive(Debug, Clone, Copy)]
struct CachedTranslation {
    page: u64,
    frame: usize,
}

const EMPTY: CachedTranslation = CachedTranslation { page: NO_PAGE, frame: 0 };

/// Translations of one context by kind of access: load, store, fetch.
type ContextTables = [[CachedTranslation; TRANSLATIONS]; 3];

/// Why an access was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// By the page tables.
    Page,
    /// Nothing is at the physical address.
    Access,
}

/// Memory as the hart of a machine sees it.
#[derive(Debug)]
pub struct SystemMemory {
    ram: Vec<Frame>,
    tables: Box<[ContextTables; CONTEXTS]>,
    data_context: usize,
    fetch_context: usize,
    data_mode: PrivilegeMode,
    fetch_mode: PrivilegeMode,
    satp: u64,
    accesses_user_pages: bool,
    reads_executable_pages: bool,
    /// The devices.
    pub devices: MachineDevices,
    /// Why the last access was refused.
    pub refusal: RefusalKind,
}

impl SystemMemory {
    /// So many bytes of memory, rounded down to pages.
    #[must_use]
    pub fn new(bytes: u64, devices: MachineDevices) -> Self {
        let frames = usize::try_from(bytes / PAGE_BYTES).unwrap_or(0);
        Self {
            ram: vec![[0; PAGE_BYTES as usize]; frames],
            tables: Box::new([[[EMPTY; TRANSLATIONS]; 3]; CONTEXTS]),
            data_context: CONTEXTS - 1,
            fetch_context: CONTEXTS - 1,
            data_mode: PrivilegeMode::Machine,
            fetch_mode: PrivilegeMode::Machine,
            satp: 0,
            accesses_user_pages: false,
            reads_executable_pages: false,
            devices,
            refusal: RefusalKind::Access,
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        self.ram.len() as u64 * PAGE_BYTES
    }

    /// Forgets translations, after tables or what governs them changed.
    pub fn forget_translations(&mut self) {
        for context in self.tables.iter_mut().flatten() {
            context.fill(EMPTY);
        }
    }

    /// Sees memory as the hart does in its present mode.
    pub fn follow(&mut self, state: &PrivilegedState) {
        let context = |mode, sum| match mode {
            PrivilegeMode::User => 0,
            PrivilegeMode::Supervisor if sum => 2,
            PrivilegeMode::Supervisor => 1,
            PrivilegeMode::Machine => 3,
        };
        self.accesses_user_pages = state.accesses_user_pages();
        self.reads_executable_pages = state.reads_executable_pages();
        (self.data_mode, self.fetch_mode) = (state.data_mode(), state.mode);
        self.data_context = context(self.data_mode, self.accesses_user_pages);
        self.fetch_context = context(self.fetch_mode, false);
        self.satp = state.satp;
    }

    fn frame_of(&self, physical: u64) -> Option<usize> {
        let frame = usize::try_from(physical.checked_sub(RAM_START)? / PAGE_BYTES).ok()?;
        (frame < self.ram.len()).then_some(frame)
    }

    fn double_at(&self, physical: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read_physical(physical, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// The physical address of a virtual one, by Sv39.
    fn walk(&mut self, address: u64, kind: AccessKind) -> Result<u64, MemoryFault> {
        let fault = MemoryFault { address, kind, exhausted: false };
        let mode = if kind == AccessKind::Fetch { self.fetch_mode } else { self.data_mode };
        if mode == PrivilegeMode::Machine || self.satp >> 60 == 0 {
            return Ok(address);
        }
        self.refusal = RefusalKind::Page;
        if ((address as i64) << 25 >> 25) as u64 != address {
            return Err(fault);
        }
        let mut table = (self.satp & FRAME_NUMBER) * PAGE_BYTES;
        for level in (0..3).rev() {
            let index = address >> (12 + 9 * level) & 511;
            let Some(entry) = self.double_at(table + 8 * index) else {
                self.refusal = RefusalKind::Access;
                return Err(fault);
            };
            let frame = entry >> 10 & FRAME_NUMBER;
            // Bits 54 on are reserved, and a page that is only writable is.
            if entry & VALID == 0 || entry & 6 == PAGE_WRITE || entry >> 54 != 0 {
                return Err(fault);
            }
            if entry & (PAGE_READ | PAGE_EXECUTE) == 0 {
                if entry & (ACCESSED | DIRTY | PAGE_USER) != 0 {
                    return Err(fault);
                }
                table = frame * PAGE_BYTES;
                continue;
            }
            let within = (1 << (9 * level)) - 1;
            if frame & within != 0 || !self.allows(entry, mode, kind) {
                return Err(fault);
            }
            let page = frame | address >> 12 & within;
            return Ok(page * PAGE_BYTES + address % PAGE_BYTES);
        }
        Err(fault)
    }

    /// Whether a leaf lets an access through; software sets the accessed and dirty bits.
    fn allows(&self, entry: u64, mode: PrivilegeMode, kind: AccessKind) -> bool {
        let user = entry & PAGE_USER != 0;
        let by_mode = match mode {
            PrivilegeMode::User => user,
            _ => !user || kind != AccessKind::Fetch && self.accesses_user_pages,
        };
        let readable =
            if self.reads_executable_pages { PAGE_READ | PAGE_EXECUTE } else { PAGE_READ };
        let by_kind = match kind {
            AccessKind::Load => entry & readable != 0,
            AccessKind::Store => entry & PAGE_WRITE != 0 && entry & DIRTY != 0,
            AccessKind::Fetch => entry & PAGE_EXECUTE != 0,
        };
        by_mode && by_kind && entry & ACCESSED != 0
    }

    /// Frame behind an address, or the physical address where a device is.
    fn translate(&mut self, address: u64, kind: AccessKind) -> Result<Place, MemoryFault> {
        let physical = self.walk(address, kind)?;
        let Some(frame) = self.frame_of(physical) else { return Ok(Place::Device(physical)) };
        let page = address / PAGE_BYTES;
        let context =
            if kind == AccessKind::Fetch { self.fetch_context } else { self.data_context };
        self.tables[context][kind as usize][page as usize % TRANSLATIONS] =
            CachedTranslation { page, frame };
        Ok(Place::Ram(frame))
    }

    #[inline(always)]
    fn cached(&self, address: u64, kind: AccessKind) -> Option<usize> {
        let page = address / PAGE_BYTES;
        let context = if kind as usize == AccessKind::Fetch as usize {
            self.fetch_context
        } else {
            self.data_context
        };
        let entry = self.tables[context % CONTEXTS][kind as usize][page as usize % TRANSLATIONS];
        (entry.page == page).then_some(entry.frame)
    }

    #[cold]
    #[inline(never)]
    fn load_slowly<const N: usize>(&mut self, address: u64) -> Result<[u8; N], MemoryFault> {
        let kind = AccessKind::Load;
        let mut bytes = [0; N];
        if address % PAGE_BYTES + N as u64 <= PAGE_BYTES {
            match self.translate(address, kind)? {
                Place::Ram(frame) => {
                    let offset = (address % PAGE_BYTES) as usize;
                    bytes.copy_from_slice(&self.ram[frame][offset..offset + N]);
                }
                Place::Device(physical) => {
                    let value = self.devices.load(physical, N as u64);
                    let value = value.ok_or_else(|| self.no_device(address, kind))?;
                    bytes.copy_from_slice(&value.to_le_bytes()[..N]);
                }
            }
            return Ok(bytes);
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            [*byte] = HartMemory::load(self, address.wrapping_add(i as u64))?;
        }
        Ok(bytes)
    }

    #[cold]
    #[inline(never)]
    fn store_slowly<const N: usize>(
        &mut self,
        address: u64,
        bytes: [u8; N],
    ) -> Result<(), MemoryFault> {
        let kind = AccessKind::Store;
        if address % PAGE_BYTES + N as u64 <= PAGE_BYTES {
            match self.translate(address, kind)? {
                Place::Ram(frame) => {
                    let offset = (address % PAGE_BYTES) as usize;
                    self.ram[frame][offset..offset + N].copy_from_slice(&bytes);
                }
                Place::Device(physical) => {
                    let mut value = [0; 8];
                    value[..N].copy_from_slice(&bytes);
                    let value = u64::from_le_bytes(value);
                    if !self.devices.store(physical, N as u64, value) {
                        return Err(self.no_device(address, kind));
                    }
                }
            }
            return Ok(());
        }
        // Both pages, before anything is written.
        self.translate(address, kind)?;
        self.translate(address.wrapping_add(N as u64 - 1), kind)?;
        for (i, byte) in bytes.into_iter().enumerate() {
            HartMemory::store(self, address.wrapping_add(i as u64), [byte])?;
        }
        Ok(())
    }

    fn no_device(&mut self, address: u64, kind: AccessKind) -> MemoryFault {
        self.refusal = RefusalKind::Access;
        MemoryFault { address, kind, exhausted: false }
    }

    fn fetch_half(&mut self, pc: u64) -> Result<u16, MemoryFault> {
        let kind = AccessKind::Fetch;
        let frame = match self.cached(pc, kind) {
            Some(frame) => frame,
            None => match self.translate(pc, kind)? {
                Place::Ram(frame) => frame,
                Place::Device(_) => return Err(self.no_device(pc, kind)),
            },
        };
        let offset = (pc % PAGE_BYTES) as usize & !1;
        Ok(u16::from_le_bytes([self.ram[frame][offset], self.ram[frame][offset + 1]]))
    }
}

impl PhysicalMemory for SystemMemory {
    fn read_physical(&self, address: u64, bytes: &mut [u8]) -> bool {
        for (at, byte) in (address..).zip(bytes) {
            let Some(frame) = self.frame_of(at) else { return false };
            *byte = self.ram[frame][(at % PAGE_BYTES) as usize];
        }
        true
    }

    fn write_physical(&mut self, address: u64, bytes: &[u8]) -> bool {
        for (at, byte) in (address..).zip(bytes) {
            let Some(frame) = self.frame_of(at) else { return false };
            self.ram[frame][(at % PAGE_BYTES) as usize] = *byte;
        }
        true
    }
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Ram(usize),
    Device(u64),
}

impl HartMemory for SystemMemory {
    #[inline(always)]
    fn load<const N: usize>(&mut self, address: u64) -> Result<[u8; N], MemoryFault> {
        let offset = (address % PAGE_BYTES) as usize;
        if let Some(frame) = self.cached(address, AccessKind::Load) {
            let bytes = self.ram.get(frame).and_then(|frame| frame.get(offset..offset + N));
            if let Some(Ok(bytes)) = bytes.map(<[u8; N]>::try_from) {
                return Ok(bytes);
            }
        }
        self.load_slowly(address)
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, address: u64, bytes: [u8; N]) -> Result<(), MemoryFault> {
        let offset = (address % PAGE_BYTES) as usize;
        if let Some(frame) = self.cached(address, AccessKind::Store) {
            let to = self.ram.get_mut(frame).and_then(|frame| frame.get_mut(offset..offset + N));
            if let Some(to) = to {
                to.copy_from_slice(&bytes);
                return Ok(());
            }
        }
        self.store_slowly(address, bytes)
    }

    fn fetch(&mut self, pc: u64) -> Result<u32, MemoryFault> {
        let low = u32::from(self.fetch_half(pc)?);
        if low & 3 != 3 {
            return Ok(low);
        }
        Ok(low | u32::from(self.fetch_half(pc.wrapping_add(2))?) << 16)
    }

    /// The physical address, since code is what lies there.
    #[inline(always)]
    fn code_address(&mut self, pc: u64) -> Result<u64, MemoryFault> {
        let frame = match self.cached(pc, AccessKind::Fetch) {
            Some(frame) => frame,
            None => match self.translate(pc, AccessKind::Fetch)? {
                Place::Ram(frame) => frame,
                Place::Device(_) => return Err(self.no_device(pc, AccessKind::Fetch)),
            },
        };
        Ok(frame as u64 * PAGE_BYTES + pc % PAGE_BYTES)
    }
}
