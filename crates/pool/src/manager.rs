//! The memory manager: which frames of each pool are free, and whose the others are.
//!
//! Free frames are given out first in, first out, as Opal does. A file's frames are given out when
//! it is first mapped, all at once and from the pools in turn; whoever maps it later gets the same
//! ones ("Exploring Allocation Policies in Disaggregated Non-Volatile Memories", MCHPC 2018,
//! section 3.4).

use std::collections::{BTreeMap, HashMap, VecDeque};

/// A frame of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolFrame {
    /// The pool, from 0.
    pub pool: usize,
    /// Its number there.
    pub frame: u64,
}

/// Whose a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameOwner {
    /// A host's alone, by its index.
    Host(usize),
    /// A file's, by its number.
    File(u32),
}

/// Why the manager says no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagerError {
    /// Pools have too few free frames.
    #[error("{wanted} frames are asked for and {free} are free; give larger pools")]
    Full {
        /// Frames asked for.
        wanted: u64,
        /// Frames that are free.
        free: u64,
    },
    /// A host gives back frames that it does not have.
    #[error("host {host} gives back {count} frames of pool {pool} and has {has}")]
    NotTaken {
        /// The host.
        host: usize,
        /// The pool.
        pool: usize,
        /// Frames that it gives back.
        count: u64,
        /// Frames that it has.
        has: u64,
    },
    /// A file is there in another size.
    #[error("file {id} has {has} pages and {wanted} are to be mapped; give one size")]
    FileSize {
        /// The file.
        id: u32,
        /// Its pages.
        has: u64,
        /// Pages that are asked for.
        wanted: u64,
    },
}

/// Frames of one pool.
#[derive(Debug, Clone, Default)]
struct ManagedPool {
    capacity: u64,
    /// Frames from here on were never given out; they come before those that were given back.
    fresh: u64,
    given_back: VecDeque<u64>,
    owners: HashMap<u64, FrameOwner>,
    /// Frames of each host, in the order in which it got them.
    by_host: Vec<Vec<u64>>,
}

impl ManagedPool {
    fn free(&self) -> u64 {
        self.capacity - self.owners.len() as u64
    }

    fn take(&mut self, owner: FrameOwner) -> Option<u64> {
        let frame = if self.fresh < self.capacity {
            self.fresh += 1;
            self.fresh - 1
        } else {
            self.given_back.pop_front()?
        };
        self.owners.insert(frame, owner);
        Some(frame)
    }
}

/// A file and who has it mapped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct MappedFile {
    frames: Vec<PoolFrame>,
    hosts: Vec<usize>,
}

/// The manager.
#[derive(Debug, Clone, Default)]
pub struct MemoryManager {
    pools: Vec<ManagedPool>,
    files: BTreeMap<u32, MappedFile>,
}

impl MemoryManager {
    /// All frames free: pools of so many frames each, and so many hosts.
    #[must_use]
    pub fn new(capacities: &[u64], hosts: usize) -> Self {
        let pool = |capacity: &u64| ManagedPool {
            capacity: *capacity,
            by_host: vec![Vec::new(); hosts],
            ..ManagedPool::default()
        };
        Self { pools: capacities.iter().map(pool).collect(), files: BTreeMap::new() }
    }

    /// Free frames of a pool.
    #[must_use]
    pub fn free(&self, pool: usize) -> u64 {
        self.pools.get(pool).map_or(0, ManagedPool::free)
    }

    /// Frames of a pool that a host has to itself, in the order in which it got them.
    #[must_use]
    pub fn frames_of(&self, host: usize, pool: usize) -> &[u64] {
        let frames = self.pools.get(pool).and_then(|pool| pool.by_host.get(host));
        frames.map_or(&[], Vec::as_slice)
    }

    /// A host asks for `count` frames of a pool at once: all of them, or none.
    ///
    /// # Errors
    /// [`ManagerError::Full`].
    pub fn take(&mut self, host: usize, pool: usize, count: u64) -> Result<(), ManagerError> {
        let free = self.free(pool);
        if count > free {
            return Err(ManagerError::Full { wanted: count, free });
        }
        let of = &mut self.pools[pool];
        for _ in 0..count {
            if let Some(frame) = of.take(FrameOwner::Host(host)) {
                of.by_host[host].push(frame);
            }
        }
        Ok(())
    }

    /// A host gives back the `count` frames of a pool that it got last.
    ///
    /// # Errors
    /// [`ManagerError::NotTaken`].
    pub fn give_back(&mut self, host: usize, pool: usize, count: u64) -> Result<(), ManagerError> {
        let has = self.frames_of(host, pool).len() as u64;
        if count > has {
            return Err(ManagerError::NotTaken { host, pool, count, has });
        }
        let of = &mut self.pools[pool];
        for frame in of.by_host[host].split_off((has - count) as usize) {
            of.owners.remove(&frame);
            of.given_back.push_back(frame);
        }
        Ok(())
    }

    /// The frames of a file of `pages` pages, taken from the pools in turn where the file is new.
    ///
    /// # Errors
    /// [`ManagerError::FileSize`], [`ManagerError::Full`].
    pub fn find_file(&mut self, id: u32, pages: u64) -> Result<&[PoolFrame], ManagerError> {
        if !self.files.contains_key(&id) {
            let free = self.pools.iter().map(ManagedPool::free).sum();
            if pages > free {
                return Err(ManagerError::Full { wanted: pages, free });
            }
            let mut frames = Vec::with_capacity(pages as usize);
            let count = self.pools.len().max(1);
            let mut turn = 0;
            while (frames.len() as u64) < pages {
                let pool = turn % count;
                turn += 1;
                let taken = self.pools[pool].take(FrameOwner::File(id));
                frames.extend(taken.map(|frame| PoolFrame { pool, frame }));
            }
            self.files.insert(id, MappedFile { frames, hosts: Vec::new() });
        }
        let frames = &self.files.entry(id).or_default().frames;
        let has = frames.len() as u64;
        if has != pages {
            return Err(ManagerError::FileSize { id, has, wanted: pages });
        }
        Ok(frames)
    }

    /// A host maps the file, and may reach its frames from now on.
    ///
    /// # Errors
    /// As [`Self::find_file`].
    pub fn map_file(
        &mut self,
        id: u32,
        pages: u64,
        host: usize,
    ) -> Result<&[PoolFrame], ManagerError> {
        self.find_file(id, pages)?;
        let file = self.files.entry(id).or_default();
        if !file.hosts.contains(&host) {
            file.hosts.push(host);
        }
        Ok(&file.frames)
    }

    /// Files with who has each mapped, and where each page lies.
    pub fn files(&self) -> impl Iterator<Item = (u32, &[usize], &[PoolFrame])> {
        self.files.iter().map(|(id, file)| (*id, &file.hosts[..], &file.frames[..]))
    }

    /// Page `page` of a file goes to a frame of another pool; `None`: there is no such page, or
    /// that pool is full. Where it lies now.
    pub fn move_file_page(&mut self, id: u32, page: u64, pool: usize) -> Option<PoolFrame> {
        let at = *self.files.get(&id)?.frames.get(page as usize)?;
        let frame = self.pools.get_mut(pool)?.take(FrameOwner::File(id))?;
        let old = self.pools.get_mut(at.pool)?;
        old.owners.remove(&at.frame);
        old.given_back.push_back(at.frame);
        let to = PoolFrame { pool, frame };
        self.files.get_mut(&id)?.frames[page as usize] = to;
        Some(to)
    }

    /// Whose a frame is; `None`: it is free.
    #[must_use]
    pub fn owner(&self, at: PoolFrame) -> Option<FrameOwner> {
        self.pools.get(at.pool)?.owners.get(&at.frame).copied()
    }

    /// Whether a host may reach a frame: what module or router look up.
    #[must_use]
    pub fn allows(&self, host: usize, at: PoolFrame) -> bool {
        match self.owner(at) {
            Some(FrameOwner::Host(owner)) => owner == host,
            Some(FrameOwner::File(id)) => {
                self.files.get(&id).is_some_and(|file| file.hosts.contains(&host))
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pool: usize, frame: u64) -> PoolFrame {
        PoolFrame { pool, frame }
    }

    #[test]
    fn frames_are_given_out_first_in_first_out() {
        let mut manager = MemoryManager::new(&[6, 2], 2);
        manager.take(0, 0, 3).unwrap();
        manager.take(1, 0, 2).unwrap();
        assert_eq!(
            (manager.frames_of(0, 0), manager.frames_of(1, 0)),
            (&[0, 1, 2][..], &[3, 4][..])
        );
        manager.give_back(0, 0, 2).unwrap();
        manager.give_back(1, 0, 1).unwrap();
        // Frame 5 was never given out; then 1, 2 and 4 come in the order in which they came back.
        manager.take(1, 0, 4).unwrap();
        assert_eq!((manager.frames_of(1, 0), manager.free(0)), (&[3, 5, 1, 2, 4][..], 0));
        assert_eq!(manager.take(0, 0, 1), Err(ManagerError::Full { wanted: 1, free: 0 }));
        assert_eq!(manager.take(0, 1, 3), Err(ManagerError::Full { wanted: 3, free: 2 }));
        assert_eq!(manager.free(1), 2, "all or none");
        let none = ManagerError::NotTaken { host: 0, pool: 0, count: 2, has: 1 };
        assert_eq!(manager.give_back(0, 0, 2), Err(none));
    }

    #[test]
    fn files_have_the_same_frames_for_all_and_strangers_are_kept_out() {
        let mut manager = MemoryManager::new(&[4, 4], 3);
        let first = manager.map_file(7, 3, 0).unwrap().to_vec();
        assert_eq!(first, [at(0, 0), at(1, 0), at(0, 1)]);
        assert_eq!(manager.map_file(7, 3, 1).unwrap(), first);
        assert_eq!((manager.free(0), manager.free(1)), (2, 3));
        let other = ManagerError::FileSize { id: 7, has: 3, wanted: 4 };
        assert_eq!(manager.map_file(7, 4, 2), Err(other));
        assert!(manager.map_file(8, 9, 2).is_err());
        manager.take(2, 0, 1).unwrap();
        let own = at(0, 2);
        assert_eq!(manager.owner(own), Some(FrameOwner::Host(2)));
        for (host, frame, allowed) in
            [(0, first[0], true), (1, first[1], true), (2, first[0], false), (2, own, true)]
        {
            assert_eq!(manager.allows(host, frame), allowed, "host {host}, {frame:?}");
        }
        assert!(
            !manager.allows(0, own) && !manager.allows(0, at(1, 3)) && !manager.allows(0, at(9, 0))
        );
        assert_eq!(manager.move_file_page(7, 0, 1), Some(at(1, 1)));
        assert!(manager.allows(0, at(1, 1)) && !manager.allows(0, first[0]), "it has moved");
        assert_eq!((manager.free(0), manager.free(1), manager.owner(first[0])), (2, 2, None));
        assert_eq!(manager.move_file_page(7, 3, 1), None);
        manager.give_back(2, 0, 1).unwrap();
        assert!(!manager.allows(2, own), "a host that keeps an address of a frame it gave back");
    }
}
