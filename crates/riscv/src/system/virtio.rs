//! A virtio block device over memory-mapped registers.
//!
//! Source: Virtual I/O Device (VIRTIO) version 1.2, 2.7 (split queues), 4.2.2, 5.2.

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 512;
/// Descriptors of the queue at most.
const QUEUE_SIZE: u32 = 256;
/// Bytes of one buffer at most; Linux asks for a megabyte at once.
const MOST_BUFFER: u32 = 1 << 24;
/// `VIRTIO_F_VERSION_1` and `VIRTIO_BLK_F_FLUSH`.
const FEATURES: u64 = 1 << 32 | 1 << 9;
/// `VIRTQ_DESC_F_NEXT`, `VIRTQ_DESC_F_WRITE`.
const HAS_NEXT: u16 = 1;
const IS_WRITTEN: u16 = 2;
/// Status of a request.
const DONE: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// What holds a disk's bytes.
pub trait DiskImage: std::fmt::Debug + Send {
    /// Bytes of the disk.
    fn length(&self) -> u64;
    /// Fills with what lies at an offset; `false` where that fails.
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> bool;
    /// Writes at an offset; `false` where that fails.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> bool;
}

/// Memory as devices reach it, by physical addresses.
pub trait PhysicalMemory {
    /// Copies from memory; `false` where there is none.
    fn read_physical(&self, address: u64, bytes: &mut [u8]) -> bool;
    /// Copies to memory; `false` where there is none.
    fn write_physical(&mut self, address: u64, bytes: &[u8]) -> bool;
}

/// The guest told the device to look at its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskRequest;

/// Addresses of the queue's parts.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    size: u32,
    ready: bool,
    descriptors: u64,
    available: u64,
    used: u64,
    /// Requests taken from the available ring.
    taken: u16,
    /// Requests put into the used ring.
    given: u16,
}

/// A descriptor of the queue.
#[derive(Debug, Clone, Copy)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
}

/// The device.
#[derive(Debug)]
pub struct BlockDevice {
    image: Box<dyn DiskImage>,
    queue: Queue,
    status: u32,
    interrupts: u32,
    feature_half: u32,
    driver_half: u32,
}

fn set_half(old: &mut u64, high: bool, value: u32) {
    let shift = if high { 32 } else { 0 };
    *old = *old & !(0xffff_ffff << shift) | u64::from(value) << shift;
}

impl BlockDevice {
    /// A disk with this content.
    #[must_use]
    pub fn new(image: Box<dyn DiskImage>) -> Self {
        let (queue, status, interrupts) = (Queue::default(), 0, 0);
        Self { image, queue, status, interrupts, feature_half: 0, driver_half: 0 }
    }

    /// Whether it asks for an interrupt.
    #[must_use]
    pub const fn interrupts(&self) -> bool {
        self.interrupts != 0
    }

    /// A load of a register, or of so many bytes of the configuration.
    pub fn load(&mut self, offset: u64, bytes: u64) -> u64 {
        match offset {
            0 => 0x7472_6976,
            4 => 2,
            8 => 2,
            0xc => 0x7272_6554,
            0x10 => FEATURES >> (32 * u64::from(self.feature_half & 1)) & 0xffff_ffff,
            0x34 => QUEUE_SIZE.into(),
            0x44 => self.queue.ready.into(),
            0x60 => self.interrupts.into(),
            0x70 => self.status.into(),
            0x100..0x108 => {
                let sectors = self.image.length() / SECTOR_BYTES;
                let mask = if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
                sectors >> (8 * (offset - 0x100)) & mask
            }
            _ => 0,
        }
    }

    /// A store to a register.
    pub fn store(&mut self, offset: u64, value: u32) -> Option<DiskRequest> {
        match offset {
            0x14 => self.feature_half = value,
            0x24 => self.driver_half = value,
            0x38 => self.queue.size = value.min(QUEUE_SIZE),
            0x44 => self.queue.ready = value & 1 != 0 && self.queue.size.is_power_of_two(),
            0x50 => return Some(DiskRequest),
            0x64 => self.interrupts &= !value,
            0x70 if value == 0 => {
                (self.queue, self.status, self.interrupts) = (Queue::default(), 0, 0);
            }
            0x70 => self.status = value,
            0x80 | 0x84 => set_half(&mut self.queue.descriptors, offset == 0x84, value),
            0x90 | 0x94 => set_half(&mut self.queue.available, offset == 0x94, value),
            0xa0 | 0xa4 => set_half(&mut self.queue.used, offset == 0xa4, value),
            _ => {}
        }
        None
    }

    /// Answers the requests in the queue. A queue that lies outside memory stops the device.
    pub fn serve(&mut self, memory: &mut impl PhysicalMemory) {
        let mut served = 0;
        while self.queue.ready && served < QUEUE_SIZE {
            match self.serve_next(memory) {
                Some(true) => served += 1,
                Some(false) => break,
                None => self.queue.ready = false,
            }
        }
        if served > 0 {
            self.interrupts |= 1;
        }
    }

    /// Answers one request, if there is one; `None` where the queue is damaged.
    fn serve_next(&mut self, memory: &mut impl PhysicalMemory) -> Option<bool> {
        let queue = self.queue;
        if half(memory, queue.available.checked_add(2)?)? == queue.taken {
            return Some(false);
        }
        let slot = u64::from(u32::from(queue.taken) % queue.size);
        let head = half(memory, queue.available.checked_add(4 + 2 * slot)?)?;
        self.queue.taken = queue.taken.wrapping_add(1);
        let mut chain = Vec::new();
        let mut next = head;
        loop {
            let descriptor = self.descriptor(memory, next)?;
            // A chain that is longer than the queue is a circle.
            if chain.len() >= queue.size as usize || descriptor.length > MOST_BUFFER {
                return None;
            }
            chain.push(descriptor);
            if descriptor.flags & HAS_NEXT == 0 {
                break;
            }
            next = descriptor.next;
        }
        let written = self.answer(memory, &chain)?;
        let slot = u64::from(u32::from(queue.given) % queue.size);
        let entry = u64::from(head) | u64::from(written) << 32;
        let place = queue.used.checked_add(4 + 8 * slot)?;
        self.queue.given = queue.given.wrapping_add(1);
        let stored = memory.write_physical(place, &entry.to_le_bytes())
            && memory.write_physical(queue.used.checked_add(2)?, &self.queue.given.to_le_bytes());
        stored.then_some(true)
    }

    fn descriptor(&self, memory: &impl PhysicalMemory, number: u16) -> Option<Descriptor> {
        if u32::from(number) >= self.queue.size {
            return None;
        }
        let mut bytes = [0; 16];
        let at = self.queue.descriptors.checked_add(16 * u64::from(number))?;
        if !memory.read_physical(at, &mut bytes) {
            return None;
        }
        let [address, rest] = [0, 8].map(|at: usize| {
            bytes[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        });
        let (length, flags, next) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
        Some(Descriptor { address, length, flags, next })
    }

    /// Does what a chain of buffers asks for; how many bytes were written to it.
    fn answer(&mut self, memory: &mut impl PhysicalMemory, chain: &[Descriptor]) -> Option<u32> {
        let (header, rest) = chain.split_first()?;
        let (status_at, buffers) = rest.split_last()?;
        let mut bytes = [0; 16];
        if header.length < 16 || !memory.read_physical(header.address, &mut bytes) {
            return None;
        }
        let kind = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let sector = bytes[8..].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let mut offset = sector.checked_mul(SECTOR_BYTES)?;
        let (mut status, mut written) = (DONE, 0);
        for buffer in buffers {
            let mut content = vec![0; buffer.length as usize];
            let end = offset.checked_add(buffer.length.into())?;
            let inside = end <= self.image.length();
            let to_guest = buffer.flags & IS_WRITTEN != 0;
            let done = match kind {
                0 if inside && to_guest => self.image.read_at(offset, &mut content),
                1 if inside && !to_guest => {
                    memory.read_physical(buffer.address, &mut content)
                        && self.image.write_at(offset, &content)
                }
                // The device's name.
                8 if to_guest => {
                    content.iter_mut().zip(b"terrace\0").for_each(|(to, from)| *to = *from);
                    true
                }
                0 | 1 | 4 => false,
                _ => {
                    status = UNSUPPORTED;
                    continue;
                }
            };
            if done && to_guest && !memory.write_physical(buffer.address, &content) {
                return None;
            }
            status = if done { status } else { FAILED };
            written += if to_guest { buffer.length } else { 0 };
            offset = end;
        }
        memory.write_physical(status_at.address, &[status]).then_some(written + 1)
    }
}

fn half(memory: &impl PhysicalMemory, at: u64) -> Option<u16> {
    let mut bytes = [0; 2];
    memory.read_physical(at, &mut bytes).then(|| u16::from_le_bytes(bytes))
}
