//! Blocks worked on where they lie.

use super::api::StageError;
use super::blocks::Blocks;
use super::pipeline::{lock, Pipeline};
use super::places::Places;
use std::sync::{Mutex, PoisonError};

/// What threads share, under a lock.
struct Shared<'a> {
    blocks: Blocks<'a>,
    next: usize,
    failed: Option<StageError>,
}

impl Shared<'_> {
    /// The next block, with its number; asked for where none is known.
    fn take(&mut self) -> Option<(usize, (usize, usize))> {
        if self.failed.is_some() {
            return None;
        }
        if self.next == self.blocks.known().len() {
            // The others wait meanwhile: there is nothing else for them to do, and they hold
            // nothing.
            if let Err(failed) = self.blocks.next() {
                self.failed = Some(failed);
                return None;
            }
        }
        let block = *self.blocks.known().get(self.next)?;
        self.next += 1;
        Some((self.next - 1, block))
    }
}

impl Pipeline<'_> {
    /// Each thread takes the next block until none is left. Threads and blocks that there were.
    pub(super) fn in_place(
        &self,
        blocks: Blocks<'_>,
        mut threads: u32,
    ) -> Result<(u32, usize), StageError> {
        let most = if blocks.ended() { blocks.known().len().max(1) } else { usize::MAX };
        let shared = Mutex::new(Shared { blocks, next: 0, failed: None });
        std::thread::scope(|scope| {
            let mut places = Places::new(&self.options.cpus);
            for index in 0..threads.min(u32::try_from(most).unwrap_or(u32::MAX)) {
                let shared = &shared;
                let begun = places.begin(scope, index, move || loop {
                    let taken = lock(shared).take();
                    let Some((number, block)) = taken else { return };
                    if let Err(message) = self.kernel(number, self.block(block).data, block.1, None)
                    {
                        let failed =
                            StageError::Panicked { block: number, message, intact: !self.back };
                        lock(shared).failed.get_or_insert(failed);
                    }
                });
                match begun {
                    Ok(()) => threads = index + 1,
                    // Fewer do it too.
                    Err(_) if index > 0 => break,
                    Err(e) => {
                        lock(shared).failed = Some(e.into());
                        break;
                    }
                }
            }
        });
        let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        match shared.failed {
            Some(failed) => Err(failed),
            None => Ok((threads, shared.blocks.known().len())),
        }
    }
}
