//! What a chunk's bytes are: zeros, or what was written last (a checksum a page).

use crate::geometry::{ChunkNo, PageMask};
use crate::service::Service;
use crate::store::StoreError;
use terrace_sys::ChunkFrame;
use terrace_types::Bytes;

impl Service {
    /// Each page of a mask with its bytes in the frame.
    fn each<'a>(
        &self,
        chunk: ChunkNo,
        mask: PageMask,
        frame: &'a ChunkFrame,
    ) -> Vec<(u32, &'a [u8])> {
        let g = self.pager.geometry();
        let size = g.page_bytes();
        let bits = (0..g.pages_per_chunk()).filter(|b| mask >> b & 1 == 1);
        bits.map(|b| {
            // The map's last page may be cut short.
            let len = g.parts(chunk, 1 << b).next().map_or(0, |p| p.len());
            let at = b as usize * size;
            (b, &frame.bytes()[at..at + len])
        })
        .collect()
    }

    /// Pages of a mask that are zeros, where those need not be stored.
    pub(crate) fn zeros(&self, chunk: ChunkNo, mask: PageMask, frame: &ChunkFrame) -> PageMask {
        if self.store.holds() > Bytes::ZERO {
            return 0;
        }
        let all = self.each(chunk, mask, frame);
        all.into_iter().filter(|(_, bytes)| is_zero(bytes)).fold(0, |m, (b, _)| m | 1 << b)
    }

    /// Notes the checksums of what is about to be written.
    pub(crate) fn sum_up(&mut self, chunk: ChunkNo, mask: PageMask, frame: &ChunkFrame) {
        let pages = self.each(chunk, mask, frame);
        let first = self.pager.geometry().page_at(chunk, 0) as usize;
        if let Some(sums) = &mut self.sums {
            for (b, bytes) in pages {
                sums[first + b as usize] = crc32fast::hash(bytes);
            }
        }
    }

    /// Whether what was read is what was written.
    pub(crate) fn verify(
        &self,
        chunk: ChunkNo,
        mask: PageMask,
        frame: &ChunkFrame,
    ) -> Result<(), StoreError> {
        let Some(sums) = &self.sums else {
            return Ok(());
        };
        let g = self.pager.geometry();
        for (b, bytes) in self.each(chunk, mask, frame) {
            let page = g.page_at(chunk, b);
            if sums[page as usize] != crc32fast::hash(bytes) {
                return Err(StoreError::Altered {
                    store: self.store.name(),
                    at: page * g.page_bytes() as u64,
                });
            }
        }
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|c| c.iter().fold(0, |a, b| a | b) == 0)
}
