//! Memory, compressed: a page of words that differ little by those differences ([`super::words`]),
//! others with lz4. Of the latter a run of a few pages is compressed as one *extent*: longer ones
//! compress better and faster, shorter ones cost less when a single page is wanted. Overwritten
//! extents live until their last page is.

use super::pages::{Pages, MAX_EXTENTS};
use super::slab::{Place, Slab};
use super::{words, BackingStore, CompletedJob, StoreBuffer, StoreError, StoreJob};
use lz4_flex::block::{
    compress_into_with_table, decompress_into, get_maximum_output_size, CompressTable,
};
use terrace_types::Bytes;

const PAGE: usize = 4096;
/// Pages of an extent. Four in place of two: strided access streams take 15% longer, lone pages 3%,
/// sweeps and programs the same; 7% less memory where text is sorted. One: sweeps that write take
/// 6% longer than with two.
const LONGEST: usize = 2;
const NAME: &str = "compressed";

/// How an extent is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Raw,
    Lz4,
    /// One page.
    Words,
}

#[derive(Debug, Clone, Copy)]
struct Extent {
    place: Place,
    packed: u32,
    /// Pages that it was made of, and that are still of use.
    pages: u8,
    alive: u8,
    form: Form,
}

/// Compressed memory, at most so much.
pub struct Compressed {
    slab: Slab,
    extents: Vec<Extent>,
    free: Vec<u32>,
    pages: Pages,
    limit: Bytes,
    table: CompressTable,
    packed: Vec<u8>,
    unpacked: Vec<u8>,
    done: Vec<CompletedJob>,
}

impl std::fmt::Debug for Compressed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressed")
            .field("pages", &self.pages.len())
            .field("capacity", &self.slab.capacity_bytes())
            .finish()
    }
}

impl Compressed {
    /// Holds at most `limit` bytes of compressed data.
    #[must_use]
    pub fn new(limit: Bytes) -> Self {
        Self {
            slab: Slab::default(),
            extents: Vec::new(),
            free: Vec::new(),
            pages: Pages::default(),
            limit,
            table: CompressTable::small(),
            packed: vec![0; get_maximum_output_size(LONGEST * PAGE)],
            unpacked: vec![0; LONGEST * PAGE],
            done: Vec::new(),
        }
    }

    /// Whether a page is here.
    pub(super) fn holds(&self, at: u64) -> bool {
        self.pages.get(at / PAGE as u64).is_some()
    }

    /// Takes in a run of whole pages. On failure none of it is here.
    pub(super) fn put(&mut self, at: u64, data: &[u8]) -> Result<(), StoreError> {
        self.drop_run(at, data.len());
        let mut rest = data;
        while !rest.is_empty() {
            let first = (at as usize + data.len() - rest.len()) as u64 / PAGE as u64;
            match self.put_first(first, rest) {
                Ok(pages) => rest = &rest[(pages * PAGE).min(rest.len())..],
                Err(error) => {
                    self.drop_run(at, data.len());
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes in the first page or the first few; how many.
    fn put_first(&mut self, first: u64, data: &[u8]) -> Result<usize, StoreError> {
        let full = StoreError::Full { store: NAME, limit: self.limit };
        if self.free.is_empty() && self.extents.len() >= MAX_EXTENTS {
            return Err(full);
        }
        let of_words = words::pack(&data[..PAGE.min(data.len())], &mut self.packed);
        let data = &data[..data.len().min(if of_words.is_some() { PAGE } else { LONGEST * PAGE })];
        let (form, kept) = match of_words {
            Some(n) => (Form::Words, &self.packed[..n]),
            None => match compress_into_with_table(data, &mut self.packed, &mut self.table) {
                // What hardly shrinks is kept as it is: cheaper to read, and no larger.
                Ok(n) if n <= data.len() / 16 * 15 => (Form::Lz4, &self.packed[..n]),
                _ => (Form::Raw, data),
            },
        };
        let place = self.slab.put(kept, self.limit.0 as usize).ok_or(full)?;
        let pages = data.len().div_ceil(PAGE) as u8;
        let extent = Extent { place, packed: kept.len() as u32, pages, alive: pages, form };
        let number = self.free.pop().unwrap_or_else(|| {
            // By an eighth at a time: accounts are to stay below a hundredth of the data.
            if self.extents.len() == self.extents.capacity() {
                self.extents.reserve_exact(self.extents.len() / 8 + 256);
            }
            self.extents.push(extent);
            self.extents.len() as u32 - 1
        });
        self.extents[number as usize] = extent;
        for n in 0..pages {
            self.pages.set(first + u64::from(n), number, n);
        }
        Ok(usize::from(pages))
    }

    /// Fills a run of whole pages; pages never put are zeros.
    pub(super) fn get(&mut self, at: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let first = at / PAGE as u64;
        let count = out.len().div_ceil(PAGE);
        let mut n = 0;
        while n < count {
            let Some((number, index)) = self.pages.get(first + n as u64) else {
                let end = out.len().min((n + 1) * PAGE);
                out[n * PAGE..end].fill(0);
                n += 1;
                continue;
            };
            // Pages that follow in the same extent come with it.
            let mut run = 1;
            while n + run < count
                && self.pages.get(first + (n + run) as u64) == Some((number, index + run as u8))
            {
                run += 1;
            }
            let extent = self.extents[number as usize];
            let to = n * PAGE..out.len().min((n + run) * PAGE);
            self.unpack(extent, usize::from(index) * PAGE, &mut out[to])
                .ok_or(StoreError::Altered { store: NAME, at: (first + n as u64) * PAGE as u64 })?;
            n += run;
        }
        Ok(())
    }

    fn unpack(&mut self, extent: Extent, from: usize, out: &mut [u8]) -> Option<()> {
        let packed = self.slab.get(extent.place)?.get(..extent.packed as usize)?;
        let whole = from == 0 && out.len() == usize::from(extent.pages) * PAGE;
        match extent.form {
            Form::Raw => out.copy_from_slice(packed.get(from..from + out.len())?),
            Form::Words => words::unpack(packed, out)?,
            Form::Lz4 if whole => {
                return (decompress_into(packed, out).ok()? == out.len()).then_some(())
            }
            Form::Lz4 => {
                decompress_into(packed, &mut self.unpacked).ok()?;
                out.copy_from_slice(self.unpacked.get(from..from + out.len())?);
            }
        }
        Some(())
    }

    /// Forgets the pages of a run.
    pub(super) fn drop_run(&mut self, at: u64, len: usize) {
        for n in 0..len.div_ceil(PAGE) as u64 {
            let Some((number, _)) = self.pages.take(at / PAGE as u64 + n) else {
                continue;
            };
            let extent = &mut self.extents[number as usize];
            extent.alive -= 1;
            if extent.alive == 0 {
                let place = extent.place;
                self.slab.free(place);
                self.free.push(number);
            }
        }
    }

    /// Does a job at once.
    pub(super) fn run(&mut self, job: &mut StoreJob) -> Result<(), StoreError> {
        let pieces = std::mem::take(&mut job.pieces);
        let result = pieces.iter().try_for_each(|p| match &mut job.buffer {
            StoreBuffer::Send(frame) => self.put(p.at, &frame.bytes()[p.start..p.start + p.len]),
            StoreBuffer::Fill(frame) => {
                self.get(p.at, &mut frame.bytes_mut()[p.start..p.start + p.len])
            }
        });
        job.pieces = pieces;
        result
    }
}

impl BackingStore for Compressed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&mut self, jobs: &mut Vec<StoreJob>) {
        for mut job in jobs.drain(..) {
            let result = self.run(&mut job);
            self.done.push(CompletedJob { job, result });
        }
    }

    fn finished(&mut self, done: &mut Vec<CompletedJob>) {
        done.append(&mut self.done);
    }

    fn forget(&mut self, at: u64, len: usize) {
        self.drop_run(at, len);
    }

    fn memory(&self) -> Bytes {
        Bytes(self.slab.capacity_bytes() as u64)
    }

    fn metadata(&self) -> Bytes {
        let extents = self.extents.capacity() * std::mem::size_of::<Extent>();
        Bytes((self.pages.bytes() + extents + self.free.capacity() * 4) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use terrace_types::Seed;

    fn page(seed: u64, random: usize) -> Vec<u8> {
        let mut s = Seed(seed);
        (0..PAGE)
            .map(|n| {
                if n >= random {
                    return (seed % 7) as u8;
                }
                let (r, next) = s.next();
                s = next;
                r as u8
            })
            .collect()
    }

    #[test]
    fn pages_come_back_alone_and_in_runs_whatever_was_overwritten() {
        let mut store = Compressed::new(Bytes::mib(16));
        let mut truth: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut seed = Seed(11);
        for round in 0..3000_u64 {
            let (r, next) = seed.next();
            seed = next;
            let (first, count) = (r % 200, (r >> 32) % 17 + 1);
            let at = first * PAGE as u64;
            match r >> 60 {
                0..=8 => {
                    let pages: Vec<Vec<u8>> = (0..count)
                        .map(|n| page(round * 31 + n, (r >> 20) as usize % 5000))
                        .collect();
                    store.put(at, &pages.concat()).unwrap();
                    truth.extend(pages.into_iter().enumerate().map(|(n, p)| (first + n as u64, p)));
                }
                9 => {
                    store.drop_run(at, count as usize * PAGE);
                    truth.retain(|p, _| *p < first || *p >= first + count);
                }
                _ => {
                    let mut out = vec![0xAA; count as usize * PAGE];
                    store.get(at, &mut out).unwrap();
                    for n in 0..count {
                        let zeros = vec![0; PAGE];
                        let expected = truth.get(&(first + n)).unwrap_or(&zeros);
                        let got = &out[n as usize * PAGE..(n as usize + 1) * PAGE];
                        assert!(got == expected, "round {round}, page {}", first + n);
                    }
                }
            }
        }
        store.drop_run(0, 300 * PAGE);
        assert_eq!((store.memory(), store.pages.len()), (Bytes::ZERO, 0));
    }

    #[test]
    fn accounts_of_numbers_are_small_and_numbers_too() {
        let mut store = Compressed::new(Bytes::mib(64));
        let mut seed = Seed(7);
        let mut most = 0.0_f64;
        for run in 0..400_u64 {
            let data: Vec<u8> = (0..16 * PAGE / 8)
                .flat_map(|_| {
                    let (r, next) = seed.next();
                    seed = next;
                    (r % 130_000).to_le_bytes()
                })
                .collect();
            store.put(run * 16 * PAGE as u64, &data).unwrap();
            if run > 150 {
                most = most.max(store.metadata().0 as f64 / ((run + 1) * 16 * PAGE as u64) as f64);
            }
            let mut back = vec![0xAA; data.len()];
            store.get(run * 16 * PAGE as u64, &mut back).unwrap();
            assert!(back == data, "run {run}");
        }
        assert!((0.001..0.006).contains(&most), "{most}");
        let kept = store.memory().0 as f64 / (6400 * PAGE) as f64;
        assert!((0.35..0.45).contains(&kept), "three bytes of eight: {kept}");
    }

    #[test]
    fn full_is_said_and_leaves_nothing_half_done() {
        let mut store = Compressed::new(Bytes::mib(1));
        let mut at = 0;
        let error = loop {
            match store.put(at, &page(at, PAGE)) {
                Ok(()) => at += PAGE as u64,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, StoreError::Full { .. }) && at > 200 * PAGE as u64,
            "{at}: {error}"
        );
        assert!(!store.holds(at) && store.holds(0));
    }
}
